//go:build !linux

package receivepack

import "time"

// holders tells that nobody is known who has a lock: processes cannot be looked at here.
func holders(note, string, time.Time) (open, near bool) { return false, false }
