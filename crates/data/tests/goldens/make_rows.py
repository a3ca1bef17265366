"""Makes rows.json: what HF's processor makes of rows with grounding tokens, tools and completions.

Run after make.py, under the peers' Python: `python crates/data/tests/goldens/make_rows.py`. Writes tools.jinja, a template
that shows tools the way Qwen's do, and rows.json: rows as people write them, HF's ids for them, and which are learned.
"""

import json

from make import HERE, load_processor

# The meaning of Qwen's templates with tools; the generation tags around what the assistant says are for HF's label mask.
TOOLS = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
{{- '# Tools\\n\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{% endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- generation %}
{%- if message.content %}{{- message.content }}{% endif %}
{%- for call in message.tool_calls %}
{%- if (loop.first and message.content) or not loop.first %}{{- '\\n' }}{% endif %}
{%- if call.function %}{% set call = call.function %}{% endif %}
{{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}{{- call.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>' }}
{%- endgeneration %}
{{- '\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""

BOX = "<|object_ref_start|>the red kite<|object_ref_end|><|box_start|>(12,34),(56,78)<|box_end|>"
QUAD = "<|quad_start|>(1,2),(3,4),(5,6),(7,8)<|quad_end|>"


def said(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments):
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks at a place: \"quoted\", <b>ü</b> & 'more'.\n",
        "parameters": {
            "type": "object",
            "properties": {"z": {"type": "number", "minimum": 0.5, "maximum": 1e16}, "a": {"enum": [1, 2, None, True]}},
            "required": ["z"],
        },
    },
}


def rows():
    yield {"messages": [said("user", f"What is in {BOX}?"), said("assistant", f"A kite at {BOX}, {QUAD}.")]}
    yield {"messages": [said("system", f"Answer with {QUAD}."), said("user", f"{BOX}{BOX} {QUAD}"), said("assistant", BOX)]}
    yield {
        "tools": [LOOK, {"type": "function", "function": {"name": "stop", "parameters": {}}}],
        "messages": [
            said("system", "Use tools."),
            said("user", "Where is the cat?"),
            said("assistant", "I look.", tool_calls=[call("look", {"z": 1.0, "a": [1, 2]}), call("stop", {})]),
            said("tool", '{"found": true}', name="look", tool_call_id="call_1"),
            said("assistant", "It is on the roof."),
        ],
    }
    yield {
        "tools": [LOOK],
        "messages": [
            said("user", "Where?"),
            said("assistant", None, tool_calls=[call("look", {"z": -1e-05, "place": "Brücke\t\"x\""})]),
            said("tool", "here", tool_call_id="call_1"),
            said("assistant", "Here."),
        ],
    }


def golden(processor, row):
    kwargs = {"tools": row["tools"]} if "tools" in row else {}
    processor.chat_template = TOOLS
    out = processor.tokenizer.apply_chat_template(
        row["messages"], chat_template=TOOLS, return_dict=True, return_assistant_tokens_mask=True, **kwargs
    )
    return {
        "row": json.dumps(row, ensure_ascii=False),
        "ids": out["input_ids"],
        "assistant": [i for i, trained in enumerate(out["assistant_masks"]) if trained],
    }


def main():
    (HERE / "tools.jinja").write_text(TOOLS)
    processor = load_processor()
    lines = ",\n".join(json.dumps(golden(processor, row), ensure_ascii=False) for row in rows())
    (HERE / "rows.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
