//go:build !linux

package proctree

const maxProcesses = 0

// scan sees nothing: there is no /proc. What has ended is counted.
func (t *Tree) scan() (now map[string]running, whole bool) {
	return map[string]running{Server: {processes: 1}}, true
}

func ownName() string { return "" }
