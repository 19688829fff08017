package mirror

import (
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
)

// stateFile is the name of the state file in a mirror's directory.
const stateFile = "packhorse-mirror.json"

// state is the persistent state of a mirror: the content of the state file.
type state struct {
	Origin   string    `json:"origin"` // URL of the origin when the mirror was created
	Path     string    `json:"path"`   // of the repository at the origin
	Created  time.Time `json:"created"`
	Complete bool      `json:"complete"` // the first update has ended well
	// Fresh is the time of the last state of the origin that the repository has. The file may have an earlier one.
	Fresh   time.Time `json:"fresh,omitzero"`
	Updated time.Time `json:"updated,omitzero"` // the last update that changed refs
	Error   string    `json:"error,omitempty"`  // why the last check or update failed; "" if it did not
}

// mirror is one mirror. It is safe for concurrent use.
type mirror struct {
	m    *Mirrors
	path git.RepoPath // path for the storage node, whichever name the client used
	dir  string       // of the repository

	mu      sync.Mutex
	rule    *Rule
	state   state
	saved   time.Time    // state.Fresh in the file
	digest  [32]byte     // of the refs that the repository has; zero: unknown
	last    *originCheck // the last check, which may be running
	running *update      // nil: none
	waiting *update      // starts when running ends; nil: none
	suspect bool         // the origin has reported a change that was not fetched
}

// complete reports whether the first update has ended well, so that the repository has a state of the origin.
func (r *mirror) complete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.Complete
}

// staleness returns the age of the origin's state that the repository has.
func (r *mirror) staleness() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.m.now().Sub(r.state.Fresh)
}

// originPath returns the path of the repository at the origin.
func (r *mirror) originPath() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.Path
}
