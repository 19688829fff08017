package node

import (
	"encoding/json"
	"log/slog"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// Values of Outcome.Command that are not commands of Git's protocol.
const (
	CommandPush        protocol.Command = "push"
	CommandLFSBatch    protocol.Command = "lfs-batch"
	CommandLFSDownload protocol.Command = "lfs-download"
	CommandLFSUpload   protocol.Command = "lfs-upload" // also a question how much of an upload has arrived
	CommandLFSLocks    protocol.Command = "lfs-locks"
	CommandArchive     protocol.Command = "archive"
)

// Outcome is what a session did, for logs, metrics and traces. This file has all that a new field needs. Attrs puts it
// into log lines and traces, and Encode sends it to a gateway in another process.
type Outcome struct {
	Command protocol.Command `json:",omitzero"` // "" if no request was read
	Agent   string           `json:",omitzero"` // the client's agent string, safe for a log
	Session string           `json:",omitzero"` // the client's session ID, safe for a log; may be ""
	Refs    int              `json:",omitzero"` // listed refs, or refs that a push names
	// Reason is why a push or LFS objects were refused, as a word for logs and metrics. "" means that nothing was.
	Reason string `json:",omitzero"`

	Fetch FetchOutcome `json:",omitzero"`
	Push  PushOutcome  `json:",omitzero"`
	LFS   LFSOutcome   `json:",omitzero"`
	// Archive is where an archive came from: hit, miss, follow, uncached. "" without one.
	Archive string `json:",omitzero"`

	Stored     Stored        `json:",omitzero"` // what the request needed of the object store; zero without one
	Mirror     Mirror        `json:",omitzero"` // how a mirror answered; "" if the repository is not a mirror
	OriginTime time.Duration `json:",omitzero"` // how long the request waited for the mirror's origin
	Stale      time.Duration `json:",omitzero"` // how old the state is, because its source did not answer

	// Dangling reports that HEAD names a branch that does not exist, and that others do. Gateways do not get it.
	Dangling bool `json:"-"`
}

// FetchOutcome is what a fetch did.
type FetchOutcome struct {
	Wants, Haves int
	Common       int    // haves that the repository has
	Pack         string // source of the pack: hit, miss, follow, uncached; "" without a pack
	Key          string // cache key of the pack
	Objects      uint32 // in the pack
	Bytes        int64  // of the pack with its pkt-line framing
	Made         Made   // how the pack was made, if this request made it
	// Durations of the stages.
	Parse, Negotiate, Wait, FirstByte, Copy time.Duration
}

// Made is how a pack was made. The zero value means that the request did not make one.
type Made struct {
	Source   string // "native" (in process) or "git"
	Fallback string // why git made it although the native source was to, as a word for logs; "" otherwise
	// Durations of the stages: selecting the objects, and copying or encoding them. The native source sets Select.
	Select, Write time.Duration
}

// PushOutcome is what a push did.
type PushOutcome struct {
	Parse  time.Duration
	Wait   time.Duration // for a slot for git
	Warmup time.Duration // how long the report waited for packs of the warm-up
	// Updates are the ref updates with their results, in the client's order. Encode leaves them out, because there can be
	// many.
	Updates []RefUpdate `json:"-"`
}

// LFSOutcome is what a request of Git LFS did.
type LFSOutcome struct {
	Objects uint32 // objects or locks of the request
	Refused uint32 // objects of a batch that cannot be transferred
	Object  string // ID of the object that is transferred
	Cache   string // where the object came from: hit, miss, follow; "" unless it was downloaded
	Bytes   int64  // sent to or received from the client
}

// Mirror is how a mirror answered a request, as a word for logs and metrics.
type Mirror string

const (
	MirrorLocal  Mirror = "local"  // from its repository
	MirrorFollow Mirror = "follow" // from the first update while it arrived
	MirrorRelay  Mirror = "relay"  // from the origin, which got the client's request
)

// Stored is what a request needed of the object store that has the repository.
type Stored struct {
	Record uint64        // number of the record that the answer is of, or that has the updates of a push
	Check  time.Duration // how long freshness checks took
	Append time.Duration // how long a push waited until its record was appended
	Tries  int           // records that a push tried to append
	Held   bool          // the node has all packs of the record on its disk, so that it answers fetches without the store
}

// RefUpdate is one ref update of a push and its result.
type RefUpdate struct {
	Ref    string       `json:"ref"` // as sent by the client; may be an invalid name
	Old    git.ObjectID `json:"old"`
	New    git.ObjectID `json:"new"`
	Result string       `json:"result"` // UpdateOK, UpdateUnchanged, UpdateUnknown, or why the ref was not changed
}

// Results of a RefUpdate. All others are reasons that git reports.
const (
	UpdateOK        = "ok"
	UpdateUnchanged = "not changed"
	UpdateUnknown   = "unknown" // the server could not determine the result
)

// Reported reports whether git's own report names a ref that was not changed. Such a session ends like a successful
// one.
func (o *Outcome) Reported() bool {
	return slices.ContainsFunc(o.Push.Updates, func(u RefUpdate) bool {
		return u.Result != UpdateOK && u.Result != UpdateUnchanged && u.Result != UpdateUnknown
	})
}

// Encode returns the outcome for a gateway in another process.
func (o *Outcome) Encode() []byte {
	b, _ := json.Marshal(o) // every value can be encoded
	return b
}

// maxWord is the maximum length in bytes of a word from another process.
const maxWord = 40

// Decode replaces the outcome by one that Encode returned in another process.
func (o *Outcome) Decode(b []byte) error {
	*o = Outcome{}
	err := json.Unmarshal(b, o)
	for _, word := range []*string{&o.Reason, &o.Fetch.Made.Source, &o.Fetch.Made.Fallback, &o.Archive,
		(*string)(&o.Mirror)} {
		*word = (*word)[:min(len(*word), maxWord)]
	}
	return err
}

// Attrs appends the attributes for a log line or a trace.
func (o *Outcome) Attrs(a []slog.Attr) []slog.Attr {
	if o.Session != "" {
		a = append(a, slog.String("session", o.Session))
	}
	switch {
	case o.Command == protocol.CommandLsRefs, o.Refs > 0:
		a = append(a, slog.Int("refs", o.Refs))
	case o.Command == protocol.CommandFetch:
		f := &o.Fetch
		a = append(a, slog.Int("wants", f.Wants), slog.Int("haves", f.Haves), slog.Int("common", f.Common))
	}
	a = o.Fetch.attrs(a)
	a = o.Push.attrs(a)
	a = o.LFS.attrs(a, o.Command)
	if o.Archive != "" {
		a = append(a, slog.String("cache", o.Archive))
	}
	a = o.Stored.attrs(a)
	if o.Mirror != "" {
		a = append(a, slog.String("mirror", string(o.Mirror)), Milliseconds("origin_ms", o.OriginTime))
	}
	if o.Stale > 0 {
		a = append(a, slog.Int64("stale_seconds", int64(o.Stale.Seconds())))
	}
	if o.Reason != "" {
		a = append(a, slog.String("reason", o.Reason))
	}
	return a
}

func (f *FetchOutcome) attrs(a []slog.Attr) []slog.Attr {
	if f.Pack == "" {
		return a
	}
	const keyDigits = 16
	a = append(a,
		slog.String("pack", f.Pack), slog.String("key", f.Key[:min(len(f.Key), keyDigits)]),
		slog.Uint64("objects", uint64(f.Objects)), slog.Int64("pack_bytes", f.Bytes),
		Milliseconds("parse_ms", f.Parse), Milliseconds("negotiate_ms", f.Negotiate), Milliseconds("wait_ms", f.Wait),
		Milliseconds("first_byte_ms", f.FirstByte), Milliseconds("copy_ms", f.Copy))
	if m := &f.Made; m.Source != "" {
		a = append(a, slog.String("pack_source", m.Source), Milliseconds("select_ms", m.Select),
			Milliseconds("write_ms", m.Write))
		if m.Fallback != "" {
			a = append(a, slog.String("pack_fallback", m.Fallback))
		}
	}
	return a
}

func (p *PushOutcome) attrs(a []slog.Attr) []slog.Attr {
	if p.Parse > 0 {
		a = append(a, Milliseconds("parse_ms", p.Parse), Milliseconds("wait_ms", p.Wait))
	}
	if p.Warmup > 0 {
		a = append(a, Milliseconds("warmup_ms", p.Warmup))
	}
	if len(p.Updates) > 0 {
		a = append(a, updateAttrs(p.Updates)...)
	}
	return a
}

func (l *LFSOutcome) attrs(a []slog.Attr, command protocol.Command) []slog.Attr {
	if l.Objects > 0 {
		a = append(a, slog.Uint64("objects", uint64(l.Objects)))
	}
	if l.Refused > 0 {
		a = append(a, slog.Uint64("objects_refused", uint64(l.Refused)))
	}
	if l.Object != "" {
		a = append(a, slog.String("object", l.Object))
	}
	if l.Cache != "" {
		a = append(a, slog.String("cache", l.Cache))
	}
	if command == CommandLFSUpload && l.Bytes > 0 {
		a = append(a, slog.Int64("received_bytes", l.Bytes))
	}
	return a
}

func (s *Stored) attrs(a []slog.Attr) []slog.Attr {
	if s.Record == 0 {
		return a
	}
	a = append(a, slog.Uint64("record", s.Record), Milliseconds("check_ms", s.Check))
	if s.Tries > 0 {
		a = append(a, Milliseconds("append_ms", s.Append), slog.Int("appends", s.Tries))
	}
	return a
}
