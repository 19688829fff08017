package protocol

import "github.com/packhorse-git/packhorse/internal/git"

// Awaited is what a caller waits for: all of it.
type Awaited struct {
	ID         git.ObjectID // that a visible ref reaches; zero: any
	Epoch      uint64       // of the node when it told the generation; 0: as it runs
	Generation uint64       // that the refs have reached; 0: any
	Caller     string       // whom the work of looking counts for, see admit.Lanes.CallerOf; "": nobody in particular
}
