from gateway.pull_counters import CacheInfo, Counters, Moved, moved, parse_cache_info, parse_counters

PAGE = b"""# HELP vllm:num_requests_running Number of requests in execution batches.
vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.5e+03
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="m",source="device"} 70.0
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="m",source="p2p"} 64.0
vllm:prompt_tokens_cached_by_source_total{engine="1",model_name="m",source="p2p"} 32.0
vllm:kv_offload_tiering_read_bytes_total{engine="0",model_name="m",tier="1:fs"} 5.0
vllm:kv_offload_tiering_read_bytes_total{engine="0",model_name="m",tier="2:p2p"} 4096.0
vllm:kv_offload_tiering_read_time_total{engine="0",model_name="m",tier="2:BoundedP2PTier"} 0.25
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="1024",sizes="{1: 2}"} 1.0
vllm:cache_config_info{block_size="64",engine="1",num_gpu_blocks="9"} 1.0
"""


def test_counters_are_added_up_over_ranks_and_only_pulls_count_as_pulls() -> None:
    assert parse_counters(PAGE) == Counters(3, 3, 1500.0, 96.0, 4096.0, 0.25)


def test_what_a_page_does_not_say_is_not_known() -> None:
    assert parse_counters(b"") == Counters()
    assert parse_cache_info(b"") == CacheInfo()
    assert parse_cache_info(b'vllm:cache_config_info{engine="0",num_gpu_blocks="None"} 1.0\n') == CacheInfo()


def test_the_first_rank_tells_how_the_cache_is_cut() -> None:
    assert parse_cache_info(PAGE) == CacheInfo(32, 1024)


def test_a_series_that_is_new_began_at_nothing() -> None:
    came = moved(Counters(pulled_bytes=100.0), Counters(pulled_tokens=64.0, pulled_bytes=300.0))
    assert came == Moved(64.0, 200.0, None)
    assert came.anything
    assert came.counted


def test_counters_that_stand_still_are_no_pull_and_missing_ones_no_count() -> None:
    still = moved(parse_counters(PAGE), parse_counters(PAGE))
    assert not still.anything
    assert still.counted
    assert not moved(Counters(), Counters()).counted
    assert moved(Counters(), Counters(pulled_bytes=1.0)).counted
