"""Trees in interval form: a key is an ancestor of a query if the query lies in the key's subtree.

Numbered as a walk from the roots comes to them, the nodes of a subtree are an interval: so `tree`
is two limits on key coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cmask.runtime.derive.sizes import BindError
from cmask.runtime.derive.tokens import Array, Tokens

_NEVER = 2**40  # beyond every number of a walk, as `clauses.FAR` is


def tours(tokens: Tokens, table: str, scope: str) -> Iterator[tuple[Array, Array, Array]]:
    """(first, stop) of each key's subtree, and the number of each query, in a walk.

    A key is the query or an ancestor when first[key] <= number[query] < stop[key].  Where a
    scope holds several trees, there is an answer for each, in which queries of others see nothing.
    """
    parents, segments = tokens.row_entry(table), tokens.segment("q")
    users = np.flatnonzero(tokens.is_in("q", tokens.tables[table].users))
    query_scopes, key_scopes = tokens.scope("q", scope), tokens.scope("k", scope)
    offsets = tokens.offset("k")
    trees: dict[int, list[Array]] = {}  # of each scope instance: the queries of its trees
    for segment in np.unique(segments[users]):
        nodes = users[segments[users] == segment]
        trees.setdefault(int(query_scopes[nodes[0]]), []).append(nodes)
    for index in range(max(map(len, trees.values()), default=1)):
        first, stop = np.full((2, tokens.length("k")), _NEVER)
        number = np.full(tokens.length("q"), -_NEVER)
        for instance, of_scope in trees.items():
            for nodes in of_scope[index : index + 1]:
                entered, left = walk(parents[nodes], table)
                keys = np.flatnonzero((key_scopes == instance) & (offsets < len(nodes)))
                first[keys], stop[keys] = entered[offsets[keys]], left[offsets[keys]]
                number[nodes] = entered
        yield first, stop, number


def walk(parents: Array, table: str) -> tuple[Array, Array]:
    """When each node is entered, and how many have been when its subtree is left.

    parents: of each node, negative for a root; in any order.  Raises BindError for a parent that
    is no node, or a node that is its own ancestor.
    """
    count = len(parents)
    if count and parents.max() >= count:
        row = int(np.argmax(parents >= count))
        raise BindError(
            f"table `{table}`: node {row} has the parent {parents[row]}, but its region has "
            f"{count} tokens"
        )
    children: list[list[int]] = [[] for _ in range(count)]
    waiting: list[int] = []  # nodes to be entered; ~node: to be left
    for node in range(count - 1, -1, -1):  # so that the first child is entered first
        (waiting if parents[node] < 0 else children[parents[node]]).append(node)
    entered, left = np.full((2, count), -1)
    time = 0
    while waiting:
        node = waiting.pop()
        if node < 0:
            left[~node] = time
            continue
        entered[node] = time
        time += 1
        waiting += [~node, *children[node]]
    if time < count:
        raise BindError(
            f"table `{table}`: node {int(np.argmin(entered))} is its own ancestor, or below one"
        )
    return entered, left
