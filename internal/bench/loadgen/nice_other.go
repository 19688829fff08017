//go:build !linux

package loadgen

// Yielding does nothing. Priorities are used on Linux only.
func Yielding() {}

func ProcessNice(int) bool { return false }

func SessionsShare() bool { return false }
