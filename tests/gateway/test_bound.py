"""`index.max_blocks` bounds what is remembered of the pods, and says what was forgotten."""

from tests.gateway.fleet import fleet, ids, until, warm

BOUND = 60  # of the blocks of ten prompts, 12 each: 6 on the GPU, 6 in the CPU tier
PROMPTS = 10


async def test_no_more_blocks_are_remembered_than_allowed_and_the_newest_are() -> None:
    async with fleet(index={"max_blocks": BOUND}) as (front, (pod,)):
        for salt in range(PROMPTS):
            await warm(pod, ids(100, salt=salt))

        async def newest_known() -> bool:
            return bool((await front.explain(ids(100, salt=PROMPTS - 1)))["predicted_cached_tokens"] == 96)

        await until(newest_known)

        async def rest_forgotten() -> bool:  # what the CPU tier has comes later than what the GPU has
            return await front.metric("index_evicted_blocks_total") >= PROMPTS * 12 - BOUND

        await until(rest_forgotten)
        assert await front.metric("index_blocks") <= BOUND
        assert (await front.explain(ids(100)))["predicted_cached_tokens"] == 0
        # The pod itself has forgotten nothing.
        assert (await front.complete(ids(100))).cached == 96
