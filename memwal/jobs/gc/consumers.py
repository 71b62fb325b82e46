"""Collector of consumers' tags: deletes tags that no state needs, and expires consumers.

The steps, and the protection of each process: :mod:`memwal.feed.consumer_state`. A consumer expires
if it holds an older version than the newest, and exceeds a limit. Its age is the time since its
creation, its last commit or reset, or its last read that found nothing new: a consumer that reads
stays, however long the table does not change.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from memwal.base_table.refs import TAGS_DIR, ConsumerTag, parse_consumer_tag_key
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.boundary.text import age, size
from memwal.errors import ConflictError
from memwal.feed.consumer_state import (
    ConsumerState,
    Phase,
    held_bytes,
    read_states,
    swap_state,
)
from memwal.jobs.gc.collector import Extent, GcContext, decide
from memwal.jobs.gc.decision import Decision, DecisionReason, GarbageKind, Reason
from memwal.region.manifest_store import read_manifests

logger = logging.getLogger(__name__)


def collect_consumers(context: GcContext) -> Iterator[Decision]:
    """Delete the tags of expired consumers, and the tags that no state needs.

    A tag of no consumer is one of a consumer that is being made, or of a process that died then:
    its age tells.
    """
    store = context.location.store
    tags = defaultdict[str, list[ConsumerTag]](list)
    placed = {}
    for key, bytes_, modified in context.pins.refs:
        tag = parse_consumer_tag_key(key)
        if tag is not None:
            tags[tag.consumer].append(tag)
            placed[tag] = bytes_, modified
    if not tags:
        return
    now = context.now
    # The tags were listed first: a state that is read now may need later ones, and no earlier ones.
    states = {state.name: state for state in read_states(store)}
    newest = open_base(context.location)
    for name, own in tags.items():
        state = states.get(name)
        if state is not None and state.phase is Phase.ACTIVE:
            state = _expire_if_due(context, newest, state, own)
        elif state is not None:
            needed = [tag for tag in own if state.needs(tag)]
            grace = context.options.orphan_grace
            if needed and all(placed[tag][1] + grace <= now for tag in needed):
                # Of a read that was under way at the expiry, or of a reset that died.
                state = _store_expired(context, state, needed, state.reason)
        for tag in own:
            bytes_, modified = placed[tag]
            until = modified + context.options.orphan_grace
            if state is None and until > now:
                why: DecisionReason = Reason.TOO_YOUNG, f"consumer {name} may be under way", until
            elif state is not None and state.needs(tag):
                until = state.at + context.options.consumer
                why = Reason.CONSUMER, f"consumer {name} needs version {tag.version}", until
            elif state is not None and state.reason:
                why = Reason.UNNEEDED, f"consumer {name} expired: {state.reason}", None
            else:
                why = Reason.UNNEEDED, f"consumer {name} does not need it any more", None
            yield context.carry_out(
                decide(None, GarbageKind.CONSUMER, tag.name, Extent(1, bytes_), why),
                TAGS_DIR,
                partial(store.delete, tag.key),
            )


def _expire_if_due(
    context: GcContext, newest: BaseTable, state: ConsumerState, tags: Sequence[ConsumerTag]
) -> ConsumerState:
    """Return the state of a consumer, expired if it exceeds a limit; in a dry run not stored so."""
    oldest = min((tag.version for tag in tags if state.needs(tag)), default=newest.version)
    if oldest >= newest.version:
        return state
    reason = _exceeded_limit(context, newest, state, oldest)
    if reason is None:
        return state
    after = _store_expired(context, state, tags, reason)
    if after.phase is Phase.EXPIRED and not context.options.dry_run:
        logger.warning("consumer %s of %s expired: %s", state.name, context.location, reason)
    return after


def _store_expired(
    context: GcContext, state: ConsumerState, tags: Sequence[ConsumerTag], reason: str
) -> ConsumerState:
    """Return the state as an expired one that needs no tag of ``tags``; in a dry run not stored."""
    # The last step: reads that are under way do not hold their versions any more either.
    step = max([state.step + 1, *(tag.step for tag in tags)])
    expired = replace(state, phase=Phase.EXPIRED, step=step, tag=None, reason=reason)
    if context.options.dry_run:
        return expired
    try:
        return swap_state(context.location.store, state, expired)
    except ConflictError:
        # It committed, began again, or was claimed.
        return state


def _exceeded_limit(
    context: GcContext, newest: BaseTable, state: ConsumerState, oldest: int
) -> str | None:
    options = context.options
    behind = context.now - state.at
    if behind > options.consumer:
        return (
            f"it committed nothing for {age(behind.total_seconds())}, the limit is "
            f"{age(options.consumer.total_seconds())} (gc_consumer_seconds)"
        )
    if options.consumer_bytes is None:
        return None
    held = held_bytes(newest, oldest, read_manifests(context.location.store).values())
    if held <= options.consumer_bytes:
        return None
    return (
        f"{size(held)} are kept for it, the limit is {size(options.consumer_bytes)} "
        "(gc_consumer_bytes)"
    )
