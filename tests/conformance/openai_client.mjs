// What people do with OpenAI's client for Node, against the gateway at BASE_URL; the results as one JSON object.
// MODULES is a folder in whose node_modules the client is. WITHOUT are the parts, by name, that the pods cannot do.
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.MODULES, "from-here.js"));
const OpenAI = require("openai");
const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "none", maxRetries: 0 });
const model = process.env.MODEL;
const messages = [{ role: "user", content: "say this — 猫 😀" }];
const told = {};
const without = new Set((process.env.WITHOUT ?? "").split(","));

const chat = await client.chat.completions.create({ model, messages, max_completion_tokens: 8, temperature: 0 });
told.chat = chat.choices[0].message.content;
told.usage = chat.usage.completion_tokens;

const stream = await client.chat.completions.create({
  model,
  messages,
  max_completion_tokens: 8,
  temperature: 0,
  stream: true,
  stream_options: { include_usage: true },
});
told.streamed = "";
for await (const chunk of stream) {
  told.streamed += chunk.choices[0]?.delta?.content ?? "";
  told.streamedUsage = chunk.usage?.completion_tokens ?? null;
}

const left = await client.chat.completions.create({ model, messages, max_completion_tokens: 4000, stream: true });
for await (const chunk of left) {
  told.left = chunk.object;
  break;
}

told.completion = (await client.completions.create({ model, prompt: [5, 6, 7], max_tokens: 3 })).object;
if (!without.has("embedding")) told.embedding = (await client.embeddings.create({ model, input: "x" })).data[0].embedding.length;
told.models = (await client.models.list()).data.map((each) => each.id);
let response = await client.responses.create({ model, input: "say this", max_output_tokens: 8, temperature: 0 });
if (!without.has("retrieval")) response = await client.responses.retrieve(response.id);
told.response = response.output_text;
if (!without.has("hearing")) {
  const file = new File([new Uint8Array(300000)], "a.wav");
  told.heard = (await client.audio.transcriptions.create({ model, file })).text;
}

told.errors = {};
for (const [name, asked] of Object.entries({
  missing: { model: "nobody", messages },
  wrong: { model, messages, n: "two" },
  refused: { model, messages, max_completion_tokens: -1 },
})) {
  try {
    await client.chat.completions.create(asked);
  } catch (error) {
    told.errors[name] = [error.constructor.name, error.status, error.code, Boolean(error.requestID)];
  }
}
console.log(JSON.stringify(told));
