package mirror

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// stateFile is the name of the state file in a mirror's directory.
const stateFile = places.MirrorFile

// state is the persistent state of a mirror: the content of the state file.
type state struct {
	Origin   string    `json:"origin"`          // URL of the rule
	Path     string    `json:"path"`            // of the repository at the origin when the mirror was created
	Moved    string    `json:"moved,omitempty"` // where the origin redirects requests for Path to; "": nowhere
	Created  time.Time `json:"created"`
	Complete bool      `json:"complete"` // the first update has ended well
	// Fresh is when the origin had the state that the repository has. The file may have an earlier time.
	Fresh   time.Time `json:"fresh,omitzero"`
	Updated time.Time `json:"updated,omitzero"` // the last update that changed refs
	Error   string    `json:"error,omitempty"`  // why the last check or update failed; "" if it did not
}

// saveInterval is how often the state file gets a new state.Fresh if nothing else changes.
const saveInterval = 10 * time.Minute

// maxState is the maximum size of a state file in bytes.
const maxState = 1 << 20

// loadState reads the state file of a mirror. The error is Corrupt if one of the marks was lost or is damaged. Then the
// origin, which decides about readers, is not known for sure.
func loadState(marks places.MirrorMarks) (*state, error) {
	damaged := func(cause error) error {
		return fault.Wrap(fault.Corrupt, "the mirror is damaged, so its readers are not known: remove it (packhorse mirror "+
			"remove), and the next clone creates it again", cause)
	}
	if !marks.File {
		return nil, damaged(errors.New(stateFile + " is missing"))
	}
	file := filepath.Join(marks.Dir, stateFile)
	info, err := os.Lstat(file)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxState) {
		return nil, damaged(errors.New(stateFile + " is not a regular file, or too long"))
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "cannot read the state of the mirror", err)
	}
	var s state
	if err = json.Unmarshal(text, &s); err == nil && (s.Origin == "" || s.Path == "") {
		err = errors.New("no origin")
	}
	switch {
	case err != nil:
		return nil, damaged(fmt.Errorf("%s: %w", stateFile, err))
	case !marks.Key:
		return nil, damaged(errors.New("its config does not have " + places.MirrorKey + " any more"))
	}
	return &s, nil
}

// pathBelow returns the path of the repository below the URL of a rule. Since the mirror was created, that URL may have
// changed to another scheme, or to another part of the same host. requested is the path at the origin that belongs to
// the path here. The error is Denied if it is another repository: the rule has another origin, or the directory was
// moved.
func (s *state) pathBelow(rule *Rule, requested string) (string, error) {
	base := rule.URL.String()
	if s.Origin == base && s.Path == requested { // the usual case
		return s.Path, nil
	}
	old, err := url.Parse(s.Origin)
	if err == nil && strings.EqualFold(old.Hostname(), rule.URL.Hostname()) &&
		(old.Scheme != rule.URL.Scheme || old.Port() == rule.URL.Port()) {
		path, ok := strings.CutPrefix(directory(old)+s.Path, directory(rule.URL))
		if ok && rule.isSame(path, requested) {
			return path, nil
		}
	}
	return "", fault.New(fault.Denied, "the mirror is that of %s, and its [[mirror]] table is for %s: remove it "+
		"(packhorse mirror remove), and the next clone creates it again", strings.TrimSuffix(s.Origin, "/")+"/"+s.Path,
		strings.TrimSuffix(base, "/")+"/"+requested)
}

// directory returns the path of a URL with a slash at its end.
func directory(u *url.URL) string { return strings.TrimSuffix(u.Path, "/") + "/" }

// isSame reports whether two paths are names of the same repository at the origin.
func (r *Rule) isSame(a, b string) bool {
	x, err := git.ParseRepoPath(a)
	y, wrong := git.ParseRepoPath(b)
	return err == nil && wrong == nil && r.canonical(x) == r.canonical(y)
}

func (s *state) encode() []byte {
	text, _ := json.MarshalIndent(s, "", "\t") // has no values that fail
	return append(text, '\n')
}

// mirror is one mirror. It is safe for concurrent use.
type mirror struct {
	m    *Mirrors
	path git.RepoPath // path for the storage node, whichever name the client used
	dir  string       // of the repository

	saving sync.Mutex // held to write the state file; locked before mu

	mu      sync.Mutex
	rule    *Rule // the last one that covered the mirror; nil: none did since the start
	orphan  bool  // no rule covers the mirror at present, and rule is for a running update only
	state   state
	saved   state        // content of the file
	gone    bool         // removed or detached: the file must not be written
	digest  [32]byte     // of the refs that the repository has; zero: unknown
	suspect time.Time    // when the origin may last have changed: earlier checks do not hold
	last    *originCheck // the last check, which may be running
	down    error        // why the origin did not answer; nil if it did
	downAt  time.Time    // when down was found
	running *update      // nil: none
	waiting *update      // starts when running ends; nil: none
	failed  failure      // of the last update
	text    string       // progress of the running update

	version   protocol.Version // of the origin
	offer     protocol.Offer   // the optional features of the origin
	hydration *hydration       // the pack of the first update while that runs; nil: none
	demand    demand
}

// complete reports whether the first update has ended well, so that the repository has a state of the origin.
func (r *mirror) complete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.Complete
}

// originPath returns the present path of the repository at the origin.
func (r *mirror) originPath() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.currentPath()
}

// pathBelow is state.pathBelow.
func (r *mirror) pathBelow(rule *Rule, requested string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.pathBelow(rule, requested)
}

// firstPath returns the path that checks and updates ask for. After a rename the origin redirects it, until it gives
// the path to another repository: then that is the one that clients of this path get, as at the origin.
func (r *mirror) firstPath() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.Path
}

func (s *state) currentPath() string { return cmp.Or(s.Moved, s.Path) }

// progress returns the progress of the running update as text, such as "43 %, 120.00 MiB". It is "" before the pack
// arrives.
func (r *mirror) progress() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text
}

// isOrphan reports whether no rule covers the mirror.
func (r *mirror) isOrphan() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.orphan
}

func (r *mirror) currentRule() *Rule {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rule
}

// setRule sets the rule that covers the mirror; nil: none. Another rule may have other patterns of refs, and another
// URL. requested is the path at the origin that belongs to the path of a request. The error is that of pathBelow.
func (r *mirror) setRule(rule *Rule, requested string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.orphan = rule == nil; rule == nil || r.rule == rule {
		return nil
	}
	path, err := r.state.pathBelow(rule, requested)
	if err != nil {
		r.orphan = true
		return err
	}
	r.rule, r.digest, r.suspect = rule, [32]byte{}, r.m.now()
	if base := rule.URL.String(); base != r.state.Origin {
		r.state.Origin, r.state.Path, r.state.Moved = base, path, ""
	}
	return nil
}

// save writes the state file if more has changed than state.Fresh, or if that is much older in the file.
func (r *mirror) save() {
	r.saving.Lock()
	defer r.saving.Unlock()
	r.mu.Lock()
	now, old, gone := r.state, r.saved, r.gone
	r.mu.Unlock()
	if now.Fresh.Sub(old.Fresh) < saveInterval {
		old.Fresh = now.Fresh
	}
	if gone || now == old {
		return
	}
	if err := disk.ReplaceFile(filepath.Join(r.dir, stateFile), now.encode()); err != nil {
		r.m.log.Error("cannot write the state of a mirror", "repository", r.path.String(), "error", err)
		return
	}
	r.mu.Lock()
	r.saved = now
	r.mu.Unlock()
}

// remove ends the mirror: no update runs any more, and the state file is not written again.
func (r *mirror) remove() {
	r.saving.Lock() // a running write ends first
	r.mu.Lock()
	r.gone = true
	running, waiting := r.running, r.waiting
	r.waiting = nil
	r.mu.Unlock()
	r.saving.Unlock()
	if waiting != nil {
		waiting.err = errCancelled()
		waiting.cancel()
		close(waiting.done)
	}
	if running != nil {
		running.cancel()
		<-running.done
	}
}
