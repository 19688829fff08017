//go:build !linux

package bench

// yielding lowers the priority of the whole process; not done here.
func yielding() {}
