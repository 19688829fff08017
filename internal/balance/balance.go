// Package balance is the one scheduler: it gives work to workers that are alike. Git processes, replicas of a repository and application workers are
// given theirs by it.
//
// A worker has slots. Work goes to a worker that has nothing in flight; else to the one with the fewest in flight for its slots and weight; among
// equals to the one that is expected to be free first, by the age of what it runs and how long work of that route takes; then to the one that was
// given work the longest time ago. When all slots are taken, work waits; callers take turns, by the time for which they have held slots, and what is one
// caller's goes first come, first served. The queue's length and the time in it are bounded, and who finds no place is told when to come
// back instead of being left to hang.
//
// Core decides; Scheduler is the Core behind a lock, with a clock, for goroutines that wait; Slots is a Scheduler of one worker. Workers that are not
// alike, as those of two pools, have a Scheduler for each kind: what is learned, and the queue, are common to all workers of one.
package balance
