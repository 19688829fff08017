// Package event has the events of a node's repositories: what was created, renamed, configured, removed and pushed, in
// order. A Log is the events of one place. On a plain disk it is a Journal. In a store it comes from the records of the
// repositories (package store).
package event

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// Kind is the kind of an event.
type Kind string

const (
	Create    Kind = "create" // also by a fork
	Rename    Kind = "rename"
	Configure Kind = "configure" // the settings or HEAD
	Delete    Kind = "delete"
	Push      Kind = "push" // refs changed, by a push or by a call
)

// Event is a change of a repository. Its JSON is in journals and in records of a store.
type Event struct {
	Position string `json:"-"` // after the event; set by Log.Read

	ID          string     `json:"id"` // of the push, or another unique one
	Time        time.Time  `json:"time"`
	Kind        Kind       `json:"kind"`
	Repository  git.Text   `json:"repository"`            // its path then, without .git
	Former      git.Text   `json:"former,omitempty"`      // the path before a Rename
	Incarnation string     `json:"incarnation,omitempty"` // that of git.Version
	Actor       git.Text   `json:"actor,omitempty"`       // name of the user
	Address     string     `json:"address,omitempty"`     // of the pusher
	Options     []git.Text `json:"options,omitempty"`     // push options
	Record      uint64     `json:"record,omitempty"`      // number of the record in a store
	Refs        []Ref      `json:"refs,omitempty"`        // of a Push
	Trace       string     `json:"trace,omitempty"`       // of the request (inflight.TraceParent)
}

// Ref is the change of a ref.
type Ref struct {
	Name   git.Text         `json:"name"`
	Old    git.Text         `json:"old,omitempty"` // in hexadecimal digits; "" if the ref did not exist
	New    git.Text         `json:"new,omitempty"` // the same; "" if the ref was deleted
	Kind   receivepack.Kind `json:"kind,omitempty"`
	Hidden bool             `json:"hidden,omitempty"` // clients that fetch do not see the ref
}

// Keep is the minimum age of events that are removed. Those on a disk can be younger if they are more than 1 GiB.
const Keep = 30 * 24 * time.Hour

// Now is the position after the latest event.
const Now = "now"

// Log is a sequence of events. It is safe for concurrent use.
type Log interface {
	// Read returns up to limit events after a position, and the position after them. "" is the position before the oldest
	// event. The error is OutOfRange if events after the position were removed, or if it is of another log, and Invalid if
	// it is not a position.
	Read(ctx context.Context, after string, limit int) (events []Event, next string, err error)
	// Changed returns a channel that is closed when there are more events, or may be. Call it before Read.
	Changed() <-chan struct{}
}

// OfPush returns the event of a push that made some updates.
func OfPush(p *receivepack.Push, made []receivepack.Update, at time.Time) Event {
	e := Event{ID: p.ID, Time: at, Kind: Push, Repository: NameOf(p.Repo), Incarnation: p.Incarnation,
		Actor: git.Text(p.Pusher.Name), Address: p.Pusher.Address, Record: p.Record,
		Trace: p.Trace}
	for _, o := range p.Options {
		e.Options = append(e.Options, git.Text(o))
	}
	for _, u := range made {
		e.Refs = append(e.Refs, Ref{Name: git.Text(u.Ref), Old: hex(u.Old), New: hex(u.New), Kind: u.Kind, Hidden: u.Hidden})
	}
	return e
}

// NameOf returns the path of a repository in events: without ".git".
func NameOf(path git.RepoPath) git.Text {
	name := path.String()
	return git.Text(cmp.Or(strings.TrimSuffix(strings.TrimSuffix(name, ".git"), "/"), name))
}

func hex(id git.ObjectID) git.Text {
	if id.IsZero() {
		return ""
	}
	return git.Text(id.String())
}

// Push returns the push of an event, with the updates that it made.
func (e *Event) Push() (*receivepack.Push, error) {
	path, err := git.ParseRepoPath(string(e.Repository))
	if err != nil {
		return nil, err
	}
	p := &receivepack.Push{ID: e.ID, Repo: path, Incarnation: e.Incarnation, Record: e.Record, Trace: e.Trace,
		Pusher: node.Pusher{Name: string(e.Actor), Address: e.Address}}
	for _, o := range e.Options {
		p.Options = append(p.Options, string(o))
	}
	for _, r := range e.Refs {
		u := receivepack.Update{Kind: r.Kind, Hidden: r.Hidden}
		if u.Ref, err = git.ParseRefName(string(r.Name)); err != nil {
			return nil, err
		}
		for to, text := range map[*git.ObjectID]git.Text{&u.Old: r.Old, &u.New: r.New} {
			if text == "" {
				continue
			}
			if *to, err = git.ParseObjectID(string(text)); err != nil {
				return nil, err
			}
		}
		p.Updates = append(p.Updates, u)
	}
	return p, nil
}

// ParsePosition parses a position: the ID of its log, and numbers. Those of another log are zero. The error is Invalid.
func ParsePosition(position, id string, numbers ...*uint64) error {
	parts := strings.Split(position, "-")
	if len(parts) > 1 && parts[0] != id {
		return nil
	}
	err := error(nil)
	for i := 0; i < len(numbers) && len(parts) == 1+len(numbers) && err == nil; i++ {
		*numbers[i], err = strconv.ParseUint(parts[i+1], 10, 62)
	}
	if err != nil || len(parts) != 1+len(numbers) {
		return fault.New(fault.Invalid, "invalid position %s: want one of a response", fault.Short(position))
	}
	return nil
}

// OutOfRange returns the error for a position whose next events are not kept. The oldest event is after oldest.
func OutOfRange(position, oldest string) error {
	return fault.New(fault.OutOfRange, "the events after position %s are not kept any more, or are those of another "+
		"server: the oldest ones follow position %s. List all repositories, and continue with the position %q",
		fault.Short(position), oldest, Now)
}
