"""Memory finds messages of other conversations by their meaning.

Document: Future Extensibility, 4. Advanced Memory (Semantic search).
"""

import json

import trio

from actgent import LongTermMemory, ScriptedLLM, StepsAgent


def embed(texts):
    """Two meanings, one axis each: drinks and vehicles."""
    content = ({"tea", "sugar", "drink", "beverage"}, {"bicycle", "wheels", "ride"})
    return [
        [float(len(set(text.lower().strip("?.").split()) & group)) + 0.01 for group in content]
        for text in texts
    ]


async def main() -> None:
    llm = ScriptedLLM([json.dumps({"final_answer": "Tea."})])
    async with LongTermMemory("memory:", embed=embed) as memories:
        await memories.remember("Ada takes tea with sugar.", owner="ada")
        await memories.remember("Ada has a bicycle.", owner="ada")
        (best, *_) = await memories.recall("favourite beverage?", owner="ada", limit=1)
        assert "tea" in best.memory.text
        async with StepsAgent(
            "clerk", llm=llm, long_term_memory=memories, recall_before_answer=True
        ) as agent:
            await agent.run("Which beverage, please?", session=await agent.create_session("ada"))
    assert "Ada takes tea with sugar." in str(llm.chats[0].messages)


trio.run(main)
