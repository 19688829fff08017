//go:build !linux

package observe

const maxProcesses = 0

// scan returns the server only, because the system has no /proc. Other processes are counted when they end.
func (t *ProcessTree) scan() (now map[string]running, whole bool) {
	return map[string]running{PartServer: {processes: 1}}, true
}

func ownName() string { return "" }
