package packsource

import "time"

// Hurry shortens the pauses of the source for tests.
func (g *Git) Hurry() {
	g.pauses = pauses{flush: 5 * time.Millisecond, linger: time.Second, filter: 50 * time.Millisecond}
}

// Arguments returns the command line for a spec.
func (g *Git) Arguments(spec *Spec) []string { return g.arguments("DIR", spec) }

// Bound sets the memory limit in bytes and the number of threads of a process.
func (g *Git) Bound(memory int64, threads int) { g.options.Memory, g.options.Threads = memory, threads }

// On sets the memory of the machine in bytes.
func (g *Git) On(machine int64) { g.options.Machine = machine }
