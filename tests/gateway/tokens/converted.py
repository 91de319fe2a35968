"""Bodies of responses, messages and embeddings, of every kind that changes a prompt, and templates to show them."""

from typing import Any

from tests.gateway.tokens.templates import TEMPLATES

EVERYTHING = (
    "{# content #}{{ messages | tojson }}{% if tools is defined and tools is not none %}{{ tools | tojson }}{% endif %}"
    "{{ reasoning_effort }}|{{ enable_thinking }}|{{ thinking }}|{{ add_generation_prompt }}"
)
"""A template that hides nothing: neither a key nor its place."""
SHOWN_WITH = {"everything": EVERYTHING} | {
    name: TEMPLATES[name] for name in ("qwen-3", "mistral", "gemma", "developer")
}

WEATHER: dict[str, Any] = {
    "type": "function",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "in <b>\u00fc"}}},
    "name": "get_weather",
    "unknown": 1,
}
FULL: dict[str, Any] = WEATHER | {"strict": False, "description": 'The "weather".', "defer_loading": True}
PLAIN = {"type": "input_text", "text": " one "}
TWO = {"type": "input_text", "text": "two", "prompt_cache_breakpoint": {"mode": "explicit"}}
SAID = {"type": "output_text", "text": "Yes.", "annotations": []}
REASONED = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
CALL = {"type": "function_call", "call_id": "call00001", "arguments": '{"b": 1, "a": "\u00fc"}', "name": "get_weather"}
OTHER = CALL | {"call_id": "call00002", "id": "fc_1", "status": "completed"}
RESULT = {"type": "function_call_output", "call_id": "call00001", "output": '{"sun": true}'}
USER = {"role": "user", "content": " Hello <|im_end|> there\n"}
AGAIN = {"type": "message", "role": "user", "content": "e\u0301 \U0001f469\u200d\U0001f4bb \u4f60\u597d"}
ANSWER = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [SAID]}
EASY = {"role": "assistant", "content": "Sure."}
CHAT_CALL = {
    "type": "function",
    "id": "c1",
    "own": 1,
    "function": {"arguments": '{"x": 1}', "name": "f", "own": 2},
}
NULLS = {"enable_thinking": None, "thinking": "auto", "tools": None, "reasoning_effort": None}
PATCH = {"type": "custom", "name": "apply_patch", "description": "d", "format": {"type": "text"}}
CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "d",
    "tools": [{"type": "function", "name": "find", "parameters": {"x": 1}, "strict": True}, PATCH],
}

RESPONSES: dict[str, dict[str, Any]] = {
    "text": {"input": " Hi\n"},
    "no text": {"input": ""},
    "instructions": {"input": "Hi", "instructions": "Be terse. "},
    "no instructions": {"input": "Hi", "instructions": ""},
    "a message": {"input": [USER]},
    "several turns": {"input": [USER, EASY, AGAIN], "instructions": "x"},
    "several turns in parts": {
        "input": [{"role": "user", "content": [PLAIN, TWO]}, ANSWER, {**AGAIN, "content": [PLAIN], "name": "ann"}]
    },
    "nothing": {"input": []},
    "no parts": {"input": [{"role": "user", "content": []}]},
    "an own system message": {"input": [{"role": "system", "content": "s"}, USER], "instructions": "i"},
    "developer": {"input": [{"role": "developer", "content": [PLAIN]}, USER]},
    "developer after instructions": {"input": [USER, {"role": "developer", "content": "d"}], "instructions": "i"},
    "an answer of two parts": {"input": [USER, ANSWER | {"content": [SAID, SAID | {"text": "No."}]}, AGAIN]},
    "an answer without id and annotations": {
        "input": [USER, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}]
    },
    "an answer of input text": {"input": [USER, EASY | {"content": [PLAIN, TWO]}, AGAIN]},
    "an answer of input text with a type": {"input": [USER, EASY | {"type": "message", "content": [PLAIN]}, AGAIN]},
    "an answer of input text with an id": {"input": [USER, ANSWER | {"content": [PLAIN]}, AGAIN]},
    "an answer without parts": {"input": [USER, EASY | {"content": []}, EASY, AGAIN]},
    "an answer without parts and with a type": {"input": [USER, ANSWER | {"content": []}, AGAIN]},
    "an answer in parts without a type": {"input": [USER, EASY | {"content": [SAID]}, AGAIN]},
    "an answer in text with an id": {"input": [USER, ANSWER | {"content": "x"}, AGAIN]},
    "an answer in text with a status": {"input": [USER, EASY | {"status": "incomplete"}]},
    "a refusal": {"input": [USER, ANSWER | {"content": [{"type": "refusal", "refusal": "no"}]}, AGAIN]},
    "two answers": {"input": [USER, ANSWER, EASY, AGAIN]},
    "a phase": {"input": [USER, ANSWER | {"phase": "commentary"}, EASY | {"phase": None}, AGAIN]},
    "reasoning": {"input": [USER, REASONED, ANSWER, AGAIN]},
    "reasoning after an answer": {"input": [USER, ANSWER, REASONED, AGAIN]},
    "reasoning twice": {"input": [USER, REASONED, REASONED, EASY, AGAIN]},
    "a summary": {
        "input": [USER, {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "so"}]}, EASY]
    },
    "reasoning of nothing": {
        "input": [USER, {"type": "reasoning", "summary": [], "content": [], "encrypted_content": None}, EASY]
    },
    "reasoning without a summary": {"input": [USER, {"type": "reasoning", "content": REASONED["content"]}, EASY]},
    "encrypted reasoning": {"input": [USER, REASONED | {"encrypted_content": "xyz"}, EASY]},
    "a call": {"input": [USER, CALL, RESULT], "tools": [WEATHER]},
    "reasoning, an answer, calls": {
        "input": [USER, REASONED, EASY, CALL, OTHER, RESULT, RESULT | {"call_id": "call00002"}, EASY, AGAIN],
        "tools": [WEATHER],
    },
    "a call and then an answer": {"input": [USER, CALL, EASY, RESULT, AGAIN]},
    "a call in a namespace": {"input": [USER, CALL | {"namespace": "crm"}, RESULT], "tools": [CRM]},
    "broken arguments": {"input": [USER, CALL | {"arguments": "{oops"}, RESULT]},
    "no arguments": {"input": [USER, CALL | {"arguments": ""}, RESULT]},
    "a call without arguments": {"input": [USER, {"type": "function_call", "call_id": "c", "name": "f"}, RESULT]},
    "a custom call": {
        "input": [
            USER,
            {
                "type": "custom_tool_call",
                "call_id": "c",
                "name": "apply_patch",
                "input": "*** \u00fc",
                "namespace": "n",
            },
            {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        ],
        "tools": [PATCH],
    },
    "a custom call's result in parts": {
        "input": [
            USER,
            {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": ""},
            {"type": "custom_tool_call_output", "call_id": "c", "output": [PLAIN, TWO]},
        ]
    },
    "a result in parts": {"input": [USER, CALL, RESULT | {"output": [PLAIN, TWO], "id": "x", "status": "completed"}]},
    "a result of nothing": {"input": [USER, CALL, RESULT | {"output": []}, RESULT | {"output": ""}]},
    "a result of no call": {"input": [USER, CALL, {"type": "function_call_output", "output": "x"}]},
    "a result by a program": {
        "input": [USER, CALL, RESULT | {"id": "x", "status": "completed", "created_by": "p", "output": "x"}]
    },
    "a result by a program in parts": {
        "input": [USER, CALL, RESULT | {"id": "x", "status": "completed", "created_by": "p", "output": [PLAIN]}]
    },
    "a custom result with an id in parts": {
        "input": [
            USER,
            {"type": "custom_tool_call", "call_id": "c", "id": "x", "name": "f", "input": "y", "status": "completed"},
            {"type": "custom_tool_call_output", "call_id": "c", "id": "x", "status": "completed", "output": [PLAIN]},
        ]
    },
    "names and own keys": {
        "input": [USER | {"name": "ann", "task": "t"}, AGAIN | {"name": "bob", "content": [PLAIN | {"own": 1}]}]
    },
    "a developer with tools": {
        "input": [{"role": "developer", "content": "x", "tools": [{"type": "function", "function": {"name": "q"}}]}]
    },
    "an answer that brings calls": {
        "input": [USER, EASY | {"content": [], "reasoning": "r", "tool_calls": [CHAT_CALL]}, RESULT, EASY]
    },
    "an answer with text that brings calls": {"input": [USER, EASY | {"reasoning": "r", "tool_calls": [CHAT_CALL]}]},
    "a call after an answer that brings calls": {
        "input": [USER, EASY | {"content": [], "tool_calls": [CHAT_CALL]}, REASONED, CALL, RESULT]
    },
    "an id without a type": {
        "input": [
            USER | {"id": "m", "content": [{"type": "text", "text": "t", "own": 1}]},
            EASY | {"id": "m", "content": [SAID, SAID | {"text": "x"}]},
            USER | {"id": "m", "content": None},
            {"id": "m", "role": "tool", "content": "r", "tool_call_id": "c"},
        ]
    },
    "an answer that is null": {"input": [USER, EASY | {"id": "m", "content": None}, EASY]},
    "an id without a role": {"input": [USER, {"id": "m", "content": "x"}]},
    "an answer without text and type": {"input": [USER, EASY | {"id": "m", "content": [{"type": "refusal"}]}]},
    "an answer of text parts without a type": {"input": [USER, EASY | {"id": "m", "content": ["x"]}]},
    "a type of null": {"input": [USER | {"type": None}]},
    "a number for an id": {"input": [EASY | {"id": 5, "content": [SAID]}]},
    "other items": {"input": [USER, {"type": "item_reference", "id": "x"}]},
    "an unknown role": {"input": [{"role": "tool", "content": "x", "tool_call_id": "c"}]},
    "an unknown part": {"input": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
    "tools": {"input": "Hi", "tools": [FULL, PATCH, CRM, {"type": "web_search"}], "tool_choice": "required"},
    "no tools for the model": {"input": "Hi", "tools": [{"type": "web_search"}]},
    "no tools": {"input": "Hi", "tools": [], "tool_choice": "none"},
    "a tool choice of none": {"input": "Hi", "tools": [WEATHER | {"strict": None}], "tool_choice": "none"},
    "a named tool": {"input": "Hi", "tools": [WEATHER], "tool_choice": {"type": "function", "name": "get_weather"}},
    "a grammar": {
        "input": "Hi",
        "tools": [PATCH | {"format": {"type": "grammar", "syntax": "lark", "definition": "x"}}],
    },
    "effort": {"input": "Hi", "reasoning": {"effort": "high", "summary": "auto"}},
    "no effort": {"input": "Hi", "reasoning": {"effort": "none"}},
    "an effort that is left open": {"input": "Hi", "reasoning": {"effort": None}},
    "an unknown effort": {"input": "Hi", "reasoning": {"effort": "extreme"}},
    "thinking off": {"input": "Hi", "chat_template_kwargs": {"enable_thinking": False, "thinking": True}},
    "thinking off with an effort": {
        "input": "Hi",
        "reasoning": {"effort": "low"},
        "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "max", "add_generation_prompt": False},
    },
    "a prompt template": {"input": "Hi", "prompt": {"id": "x"}},
    "an output format": {
        "input": "Hi",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "parallel_tool_calls": False,
        "chat_template": "own",
    },
    "continued": {"input": [USER, ANSWER | {"status": "incomplete"}]},
    "continued without a type": {"input": [USER, {"role": "assistant", "status": "incomplete", "content": [PLAIN]}]},
    "continued reasoning": {"input": [USER, REASONED | {"status": "in_progress"}]},
    "a user continued": {"input": [USER | {"content": [PLAIN], "status": "in_progress"}]},
    "a user's text continued": {"input": [USER | {"status": "in_progress"}]},
    "an unfinished call": {"input": [USER, CALL | {"status": "incomplete"}]},
    "an unfinished result": {"input": [USER, CALL, RESULT | {"status": "incomplete"}]},
}

TOOL: dict[str, Any] = {"name": "get_weather", "input_schema": {"properties": {"city": {"type": "string"}}}, "x": 1}
FULL_TOOL: dict[str, Any] = {
    "input_schema": {"type": "object", "properties": {}},
    "strict": True,
    "description": "d \u00fc",
    "name": "find",
    "defer_loading": True,
    "cache_control": {"type": "ephemeral"},
}
TEXT = {"type": "text", "text": " one ", "cache_control": {"type": "ephemeral"}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
USE = {"type": "tool_use", "id": "call00001", "name": "get_weather", "input": {"b": [1.0, None], "a": '\u00fc "<b>"'}}
DONE = {"type": "tool_result", "tool_use_id": "call00001", "content": "sunny"}
ASKS = {"role": "user", "content": " Hello <|im_end|> there\n"}
ASKS_AGAIN = {"role": "user", "content": [{"type": "text", "text": "e\u0301 \u4f60\u597d"}]}
CALLS = {"role": "assistant", "content": [THOUGHT, TEXT, USE]}
ANSWERS = {"role": "assistant", "content": "Yes."}
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cch=1\nBe kind."}
REMINDER = {"role": "system", "content": "Remember."}


def _change(kind: str, **tool: Any) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": kind, "tool": tool}]}


MESSAGES: dict[str, dict[str, Any]] = {
    "one turn": {"messages": [ASKS]},
    "system": {"messages": [ASKS], "system": "Be terse. "},
    "no system": {"messages": [ASKS], "system": ""},
    "system in blocks": {"messages": [ASKS], "system": [BILLING, TEXT, {"type": "text", "text": ""}, TEXT]},
    "only a billing header": {"messages": [ASKS], "system": [BILLING]},
    "a billing header in text": {"messages": [ASKS], "system": BILLING["text"]},
    "several turns": {"messages": [ASKS, ANSWERS, ASKS_AGAIN], "system": "x"},
    "blocks": {"messages": [{"role": "user", "content": [TEXT, {"type": "text", "text": ""}, TEXT]}]},
    "empty text": {"messages": [{"role": "user", "content": ""}]},
    "no blocks": {"messages": [ASKS, {"role": "assistant", "content": []}, {"role": "user", "content": []}]},
    "blocks of nothing": {"messages": [ASKS, {"role": "user", "content": [{"type": "text", "text": ""}]}]},
    "a reminder": {"messages": [ASKS, ANSWERS, REMINDER, ASKS_AGAIN], "system": "First."},
    "a reminder without a system prompt": {"messages": [ASKS, REMINDER]},
    "reminders with billing headers": {
        "messages": [
            ASKS,
            {"role": "system", "content": [BILLING, TEXT, TEXT]},
            {"role": "system", "content": BILLING["text"]},
            {"role": "system", "content": [BILLING]},
        ]
    },
    "thinking": {"messages": [ASKS, {"role": "assistant", "content": [THOUGHT, THOUGHT, TEXT]}, ASKS_AGAIN]},
    "only thinking": {"messages": [ASKS, {"role": "assistant", "content": [THOUGHT | {"thinking": ""}]}, ASKS_AGAIN]},
    "redacted thinking": {
        "messages": [ASKS, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, ASKS_AGAIN]
    },
    "a user's thinking": {"messages": [{"role": "user", "content": [THOUGHT, TEXT]}]},
    "a user's call": {"messages": [{"role": "user", "content": [USE, TEXT]}, {"role": "user", "content": [USE]}]},
    "a call": {"messages": [ASKS, CALLS, {"role": "user", "content": [DONE]}], "tools": [TOOL]},
    "a call's result used": {
        "messages": [ASKS, CALLS, {"role": "user", "content": [DONE]}, ANSWERS, ASKS_AGAIN],
        "tools": [TOOL, FULL_TOOL],
    },
    "two calls": {
        "messages": [
            ASKS,
            {"role": "assistant", "content": [USE, USE | {"id": "call00002", "input": {}}]},
            {"role": "user", "content": [DONE, TEXT, DONE | {"tool_use_id": "call00002", "is_error": True}, TEXT]},
        ]
    },
    "a call of nothing": {"messages": [ASKS, {"role": "assistant", "content": [{"type": "tool_use", "id": "i"}]}]},
    "a call with its text behind": {"messages": [ASKS, {"role": "assistant", "content": [USE, TEXT, THOUGHT]}]},
    "results in blocks": {
        "messages": [
            ASKS,
            CALLS,
            {"role": "user", "content": [DONE | {"content": [TEXT, {"type": "document", "text": "x"}, TEXT]}]},
            {"role": "user", "content": [DONE | {"content": []}, {"type": "tool_result"}]},
            {
                "role": "user",
                "content": [DONE | {"content": [{"type": "image", "source": {"type": "url", "url": ""}}]}],
            },
        ]
    },
    "references to tools": {
        "messages": [
            ASKS,
            CALLS,
            {
                "role": "user",
                "content": [
                    DONE
                    | {
                        "content": [
                            {"type": "tool_reference", "tool_name": "find"},
                            {"type": "tool_reference", "name": "get_weather"},
                            {"type": "tool_reference"},
                        ]
                    },
                    {"type": "tool_reference", "tool_name": "find"},
                ],
            },
        ],
        "tools": [TOOL, FULL_TOOL],
    },
    "an assistant's result": {
        "messages": [
            ASKS,
            {"role": "assistant", "content": [DONE, DONE | {"content": [TEXT]}, DONE | {"content": None}]},
        ]
    },
    "an image without a source": {"messages": [{"role": "user", "content": [{"type": "image"}, TEXT]}]},
    "an unknown block": {"messages": [{"role": "user", "content": [{"type": "document", "text": "x"}, TEXT]}]},
    "tools": {"messages": [ASKS], "tools": [FULL_TOOL, TOOL], "tool_choice": {"type": "any"}},
    "no tools": {"messages": [ASKS], "tools": []},
    "a tool choice of none": {"messages": [ASKS], "tools": [TOOL], "tool_choice": {"type": "none"}},
    "a named tool": {"messages": [ASKS], "tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}},
    "a tool added": {
        "messages": [ASKS, _change("tool_addition", type="tool_reference", name="find")],
        "tools": [FULL_TOOL],
    },
    "a tool brought along": {
        "messages": [
            ASKS,
            _change("tool_addition", type="tool_definition", definition=TOOL),
            _change("tool_addition", type="tool_definition", definition=FULL_TOOL | {"description": "new"}),
        ],
        "tools": [FULL_TOOL, TOOL | {"name": "x"}],
    },
    "a tool removed": {
        "messages": [
            ASKS,
            _change("tool_removal", type="tool_reference", name="find"),
            _change("tool_removal", type="tool_reference", name="get_weather"),
            _change("tool_addition", type="tool_reference", name="get_weather"),
        ],
        "tools": [FULL_TOOL, TOOL],
    },
    "an unknown tool removed": {"messages": [ASKS, _change("tool_removal", type="tool_reference", name="x")]},
    "a definition removed": {"messages": [ASKS, _change("tool_removal", type="tool_definition", definition=TOOL)]},
    "a tool added by a user": {
        "messages": [
            {"role": "user", "content": [{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "find"}}]}
        ],
        "tools": [FULL_TOOL],
    },
    "thinking on": {"messages": [ASKS], "thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 4096},
    "thinking adaptive": {"messages": [ASKS], "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
    "thinking off": {"messages": [ASKS], "thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
    "effort": {"messages": [ASKS], "output_config": {"effort": "max", "format": {"type": "json_schema", "schema": {}}}},
    "arguments of the template": {
        "messages": [ASKS],
        "thinking": {"type": "disabled"},
        "chat_template_kwargs": {"enable_thinking": True, "thinking": True},
    },
    "arguments that are null": {"messages": [ASKS], "chat_template_kwargs": NULLS},
    "an answer begun": {"messages": [ASKS, {"role": "assistant", "content": "The answer is "}]},
}

EMBEDDINGS: dict[str, dict[str, Any]] = {
    "text": {"input": " one "},
    "no text": {"input": ""},
    "texts": {"input": ["one", ""]},
    "ids": {"input": [1, 2]},
    "lists of ids": {"input": [[1, 2], [3]]},
    "no special tokens": {"input": ["one"], "add_special_tokens": False},
    "messages": {"messages": [ASKS]},
    "messages in parts": {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [TEXT, TEXT]}]},
    "conversations": {"messages": [[ASKS], [ASKS, ANSWERS]]},
    "messages as the input": {"input": [ASKS, ANSWERS]},
    "conversations as the input": {"input": [[ASKS], [ANSWERS]]},
    "arguments of the template": {
        "messages": [ASKS],
        "add_generation_prompt": True,
        "add_special_tokens": True,
        "chat_template_kwargs": {"enable_thinking": False},
        "reasoning_effort": "high",
        "tools": [{"type": "function", "function": {"name": "f"}}],
    },
    "continued": {"messages": [ASKS, ANSWERS], "continue_final_message": True},
    "an own template": {"messages": [ASKS], "chat_template": "x"},
    "padding that is none": {"input": "one", "padding": "do_not_pad"},
    "nothing": {},
    "no input": {"input": None},
    "a number": {"input": 5},
    "texts and ids": {"input": ["one", [1]]},
    "texts as messages": {"messages": ["one"]},
}

STORED: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    (
        {"input": [{"role": "system", "content": "s"}, USER], "instructions": "first"},
        [
            REASONED | {"id": "r"},
            ANSWER | {"content": [SAID, SAID | {"text": "Really."}]},
            CALL,
        ],
    ),
    ({"input": [RESULT, AGAIN], "previous_response_id": "resp_1"}, [ANSWER]),
    ({"input": "And then?", "instructions": "third", "previous_response_id": "resp_2"}, []),
]
"""Responses that go on from each other, and the items that each answered with."""

_UNSTARTED = "command-r"  # what the engine tries it out with does not know this template's tojson, and it ends
HABITS_OF: dict[str, str] = {name: source for name, source in TEMPLATES.items() if name != _UNSTARTED} | {
    "everything": EVERYTHING,
    "refuses none": "{% if reasoning_effort == 'none' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].role }}",
    "none is max": "{{ 'max' if reasoning_effort not in ('low', 'medium', 'high') else reasoning_effort }}",
    "none by the effort": "{{ reasoning_effort }}",
    "system first": (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    ),
    "bos first": "{{ bos_token + messages[0].content }}",
    "without a system role": "{% for m in messages %}{{ {'user': 'u'}[m.role] }}{% endfor %}",
}
"""Templates that the engine finds out about when it starts."""
