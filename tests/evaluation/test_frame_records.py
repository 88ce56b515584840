import torch

from yolo_lightning.evaluation.frame_records import FrameNames

IDS = ("Ä, ö", "a\0b", "", "17", "x" * 300)


def test_ids_of_any_text_are_kept() -> None:
    assert FrameNames.of(IDS).image_ids() == IDS


def test_ids_follow_the_order_of_the_frames() -> None:
    order = [3, 0, 4, 1, 2]
    assert FrameNames.of(IDS).in_order(torch.tensor(order)).image_ids() == tuple(IDS[place] for place in order)


def test_repeated_ids_go() -> None:
    assert FrameNames.of((*IDS, *IDS[:2])).without_repeats().image_ids() == IDS
