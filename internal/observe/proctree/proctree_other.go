//go:build !linux

package proctree

const maxProcesses = 0

// scan finds no processes, because there is no /proc. Ended processes are counted.
func (t *Tree) scan() (now map[string]running, whole bool) {
	return map[string]running{Server: {processes: 1}}, true
}

func ownName() string { return "" }
