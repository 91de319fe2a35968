"""Bodies of chat completions, of every kind that changes a prompt."""

from typing import Any

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "where <to> look & what's \u00fc"},
                "days": {"type": "integer"},
            },
            "required": ["city"],
        },
        "name": "get_weather",
        "description": 'Looks up the "weather".',
        "unknown": 1,
    },
}
CALL = {
    "type": "function",
    "id": "call00001",
    "index": 0,
    "function": {"name": "get_weather", "arguments": '{"days": 3, "city": "M\u00fcnchen <b>"}'},
}
USER = {"role": "user", "content": " Hello <|im_end|> there\n"}
SYSTEM = {"role": "system", "content": "You are terse. "}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes.", "unknown": True}
THOUGHT = {"role": "assistant", "reasoning_content": "because", "content": "No."}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "look it up"}
RESULT = {"role": "tool", "tool_call_id": "call00001", "content": '{"sun": true}'}
AGAIN = {"role": "user", "content": "e\u0301 \U0001f469\u200d\U0001f4bb \u4f60\u597d"}
PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": " one "}, "two", {"type": "input_text", "text": "three", "own": 1}],
}

BODIES: dict[str, dict[str, Any]] = {
    "one turn": {"messages": [USER]},
    "system": {"messages": [SYSTEM, USER]},
    "several turns": {"messages": [SYSTEM, USER, ANSWER, AGAIN]},
    "reasoning": {"messages": [USER, THOUGHT, AGAIN]},
    "tools": {"messages": [USER], "tools": [WEATHER]},
    "strict tools": {
        "messages": [SYSTEM, USER],
        "tools": [{"type": "function", "function": {"name": "now", "strict": True}}, WEATHER],
    },
    "a tool called": {"messages": [USER, CALLED, RESULT], "tools": [WEATHER]},
    "a tool's answer used": {"messages": [SYSTEM, USER, CALLED, RESULT, ANSWER, AGAIN], "tools": [WEATHER]},
    "two results": {"messages": [USER, CALLED, RESULT, RESULT]},
    "broken arguments": {
        "messages": [USER, CALLED | {"tool_calls": [CALL | {"function": {"arguments": "{oops", "name": "f"}}]}, RESULT]
    },
    "arguments that are a list": {
        "messages": [USER, CALLED | {"tool_calls": [CALL | {"function": {"arguments": "[1]", "name": "f"}}]}, RESULT]
    },
    "no tool calls": {"messages": [USER, ANSWER | {"tool_calls": []}, AGAIN]},
    "parts": {"messages": [PARTS]},
    "a result in parts": {
        "messages": [USER, CALLED, RESULT | {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    },
    "refusal": {"messages": [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, AGAIN]},
    "empty": {"messages": [{"role": "user", "content": ""}]},
    "no parts": {"messages": [{"role": "user", "content": []}]},
    "developer": {"messages": [{"role": "developer", "content": "be kind"}, USER]},
    "developer with tools": {
        "messages": [
            {
                "role": "developer",
                "content": "x",
                "tools": [{"type": "function", "function": {"description": "d", "name": "q"}}],
            },
            USER,
        ]
    },
    "system and developer": {"messages": [SYSTEM, {"role": "developer", "content": "be kind"}, USER]},
    "late developer": {"messages": [USER, ANSWER, {"role": "developer", "content": "now be kind"}, AGAIN]},
    "empty parts": {
        "messages": [
            {"role": "user", "content": ["", {"type": "text", "text": ""}, {"type": "text", "text": "x"}, "y"]},
            {"role": "assistant", "content": [{"type": "text", "text": ""}]},
            AGAIN,
        ]
    },
    "developer with a tool that has no name": {
        "messages": [
            {"role": "developer", "content": "x", "tools": [{"function": {"description": "d"}, "type": "function"}]},
            USER,
        ]
    },
    "named": {"messages": [USER | {"name": "ann"}]},
    "other roles": {
        "messages": [SYSTEM, {"role": "skip", "content": "s"}, USER, {"role": "user", "content": "STOP"}, AGAIN]
    },
    "billing header": {
        "messages": [{"role": "system", "content": "x-anthropic-billing-header: cch=1\nBe terse."}, USER]
    },
    "only a billing header": {"messages": [{"role": "system", "content": "x-anthropic-billing-header: cch=1"}, USER]},
    "no generation prompt": {"messages": [USER, ANSWER], "add_generation_prompt": False},
    "continued": {
        "messages": [USER, {"role": "assistant", "content": "The answer is "}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "continued after a space was trimmed": {
        "messages": [USER, {"role": "assistant", "content": "The answer is\n \n"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "continued parts": {
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b "}]},
        ],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "continued nothing": {"messages": [USER, CALLED], "add_generation_prompt": False, "continue_final_message": True},
    "continued with a generation prompt": {"messages": [USER, ANSWER], "continue_final_message": True},
    "documents": {"messages": [USER], "documents": [{"title": "T", "text": "some text"}, {"title": "U", "text": "x"}]},
    "effort": {"messages": [USER], "reasoning_effort": "high"},
    "no effort": {"messages": [USER], "reasoning_effort": "none"},
    "thinking off": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False, "thinking": True}},
    "thinking on, no effort": {
        "messages": [USER],
        "reasoning_effort": "none",
        "chat_template_kwargs": {"enable_thinking": True},
    },
    "an own bos": {
        "messages": [USER],
        "chat_template_kwargs": {"bos_token": "<bos>", "eos_token": None, "padding": True},
    },
    "a date": {"messages": [USER], "chat_template_kwargs": {"date_string": "1 May 2026", "unused": "x"}},
    "a tool choice of none": {"messages": [USER], "tools": [WEATHER], "tool_choice": "none"},
    "two assistants": {"messages": [USER, ANSWER, THOUGHT, AGAIN]},
}
