// Package balance assigns work to workers that can all do it: slots for git processes, replicas of a repository,
// application workers.
//
// A worker has a number of slots. Work goes to the ready worker with the least work in flight for its slots and weight.
// Among equals, it goes to the worker that was given work the longest time ago. When all slots are taken, work waits in
// one bounded queue in front of all workers. Callers take turns in that queue by the slot time they have used. The work
// of one caller is served in order of arrival. Work that does not fit into the queue, or that would wait too long, is
// refused with a retry hint.
//
// Core makes the decisions. It has no lock and no clock. Scheduler adds both, and blocks the goroutines that wait.
// Slots is a Scheduler of one worker.
package balance

import "strings"

// Caller is the party that work counts for. It is the name of an identity, or the network of an anonymous client, as in
// "192.0.2.0/24". Names contain no slash, so that a name is never a network. The empty Caller is the
// server itself.
type Caller string

// Anonymous reports whether the caller is a network.
func (c Caller) Anonymous() bool { return strings.IndexByte(string(c), '/') >= 0 }
