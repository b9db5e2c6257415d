"""The observer: what happens to volumes of running pods, told as events, class status and metrics.

Belongs here: what watches, reads logs and writes about it. Not here: anything that an admission needs; the webhook never waits
for this process, and it never changes a pod.
"""
