// Package uploadpack serves fetch sessions: advertise refs, negotiate, send a pack. It speaks version 2 of the protocol
// (gitprotocol-v2(5)) and versions 0 and 1 (gitprotocol-pack(5)).
//
// The session of each version reads in the order of the protocol document. Both use one negotiation, the type fetch.
// Refs, existence, negotiation and shallow boundaries are answered in process; the pack comes from a packsource.Source.
// The result of the negotiation is brought into canonical form, a packsource.Spec, so that requests with the same
// meaning share one pack.
package uploadpack

import (
	"cmp"
	"context"
	"log/slog"
	"runtime"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Wants is the set of objects that a client may ask for.
type Wants string

const (
	// WantsAny allows every object that exists, like git's own version 2 server. It is safe only if all callers may read
	// the whole object store of the repository.
	WantsAny Wants = "any"
	// WantsReachable allows objects that visible refs reach.
	WantsReachable Wants = "reachable"
	// WantsTip allows the tips of visible refs.
	WantsTip Wants = "tip"
	// WantsAuto is WantsReachable if the session hides unreachable objects (node.Session.Reachable), otherwise
	// WantsAny.
	WantsAuto Wants = "auto"
)

// Options configures a Server.
type Options struct {
	Agent  string // how the server names itself
	Wants  Wants  // WantsAny falls back to WantsReachable in a repository that borrows objects from others
	Limits protocol.Limits
	Warmup *Warmup      // nil: packs are made only on request. The source must be a Warmer.
	Log    *slog.Logger // nil: not logged
}

// Server serves sessions. Safe for concurrent use.
type Server struct {
	source  packsource.Source
	keeper  keeper // the source, if it keeps packs; else nil
	options Options
	tags    memo[[]packsource.Tag] // annotated tags, sorted by ID
	tips    memo[[]git.ObjectID]   // objects that visible refs point to, sorted
	allTips memo[[]git.ObjectID]   // the same with hidden refs
	scopes  memo[*scopeDigests]
	answers answerCache
	former  formerValues
	warmth  *warmth // nil: none

	searches chan struct{} // slots of searches in trees
}

// keeper is a source that keeps packs.
type keeper interface {
	Has(key packsource.Key) bool
}

// New creates a Server that gets its packs from source.
func New(source packsource.Source, o Options) *Server {
	if o.Wants == "" {
		o.Wants = WantsReachable
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	kept, _ := source.(keeper)
	return &Server{source: source, keeper: kept, options: o, warmth: newWarmth(source, o.Warmup),
		searches: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
}

// Serve answers one request. In a stateful session of version 0 or 1 the request is everything after the advertisement.
// If Serve fails before the first byte, the transport has to report the error. After that Serve reports the error in
// the response if the protocol allows it, and returns a node.ReportedError. After any other error the response is
// incomplete.
func (s *Server) Serve(ctx context.Context, r *repo.Repo, session node.Session, request *pktline.Reader,
	response node.ResponseWriter) (node.Outcome, error) {
	start := time.Now()
	caller := balance.Caller(session.Caller)
	notice := session.Notice
	session.Caller, session.Authorization, session.Notice = "", node.Secret{}, "" // cached answers are for all callers
	lookup, err := s.answers.lookUp(ctx, r, session, request)
	if err != nil { // only fetches are cached
		return node.Outcome{Command: protocol.CommandFetch}, err
	}
	if known := lookup.answer; known != nil {
		outcome := known.outcome
		outcome.Fetch.Negotiate = time.Since(start)
		f := &fetch{Server: s, repo: r, session: session, response: response, caller: caller, notice: notice,
			outcome: &outcome, start: start}
		defer f.release()
		if known.shape != nil {
			s.warmth.shapes.countRepeat(known.shape)
		}
		err := f.send(ctx, known.spec, known.sections, known.form) // fills the outcome
		f.recordResult(known.shape, known.spec)
		return outcome, err
	}
	outcome := node.Outcome{}
	f := &fetch{Server: s, repo: r, session: session, response: response, caller: caller, notice: notice,
		lookup: lookup, outcome: &outcome, start: start, reserve: response.ReserveMemory}
	defer f.release()
	limits := s.options.Limits
	limits.Hold = response.ReserveMemory
	if session.Version != protocol.V2 {
		err := f.serveV0(ctx, request, limits) // fills the outcome
		return outcome, err
	}
	req, err := protocol.ReadRequest(request, r.Format, s.offer(r, session), limits)
	parsed := time.Since(start)
	if err != nil {
		return outcome, err
	}
	if req == nil {
		response.SetLength(0)
		return outcome, nil
	}
	outcome.Command, outcome.Agent, outcome.Session = req.Command(), req.Agent, req.SessionID
	switch {
	case req.LsRefs != nil:
		err := s.lsRefs(ctx, r, req.LsRefs, response, &outcome) // fills the outcome
		return outcome, err
	case req.ObjectInfo != nil:
		return outcome, objectInfo(ctx, r, req.ObjectInfo, response)
	case req.BundleURI:
		return outcome, bundleURI(r, response)
	}
	if err := checkFilter(&r.Policy().Filters, req.Fetch.Filter); err != nil {
		return outcome, err
	}
	f.request, outcome.Fetch.Parse = req.Fetch, parsed
	err = f.serveV2(ctx)
	return outcome, err
}

// lsRefs answers the ls-refs command.
func (s *Server) lsRefs(ctx context.Context, r *repo.Repo, req *protocol.LsRefs, response node.ResponseWriter,
	outcome *node.Outcome) error {
	snapshot, err := r.Refs.Snapshot(ctx)
	if err != nil {
		return err
	}
	s.NoteRefs(r, snapshot)
	pooled := getScratch()
	l := refLister{RefList: node.RefList{Buf: pooled.buf, Response: response, Outcome: outcome, HasLength: true}, repo: r,
		request: req}
	defer func() { pooled.buf = l.Buf; putScratch(pooled) }()
	if err := l.head(snapshot); err != nil {
		return err
	}
	if outcome.Dangling, err = isDangling(snapshot); err != nil {
		return err
	}
	for _, prefix := range disjoint(req.Prefixes) {
		if err := snapshot.Each(prefix, l.ref); err != nil {
			return err
		}
	}
	return l.End()
}

// isDangling reports whether HEAD names a branch that does not exist while others do: a clone checks out nothing.
func isDangling(snapshot *refs.Snapshot) (dangling bool, err error) {
	if head := snapshot.Head(); head.Target == "" || !head.ID.IsZero() {
		return false, nil
	}
	err = snapshot.Each("refs/heads/", func(refs.Ref) error {
		dangling = true
		return refs.ErrStop
	})
	return dangling, err
}

// refLister writes an ls-refs response.
type refLister struct {
	node.RefList
	repo    *repo.Repo
	request *protocol.LsRefs
}

// head lists HEAD if a prefix covers it. An unborn HEAD is listed only if the client requests it and, as with git, for
// symrefs.
func (l *refLister) head(snapshot *refs.Snapshot) error {
	if !covers(l.request.Prefixes, string(git.HEAD)) {
		return nil
	}
	head := snapshot.Head()
	line := protocol.RefLine{Name: git.HEAD, ID: head.ID}
	if head.ID.IsZero() {
		if !l.request.Unborn || !l.request.Symrefs || head.Target == "" || l.repo.Policy().Unborn == repo.UnbornIgnore {
			return nil
		}
		line.Target = head.Target
	} else if l.request.Symrefs {
		line.Target = head.Target
	}
	if l.request.Peel && !head.ID.IsZero() {
		ref, _, err := snapshot.Lookup(git.HEAD)
		if err == nil {
			line.Peeled, _, err = l.repo.PeelRef(ref)
		}
		if err != nil {
			return err
		}
	}
	return l.add(line)
}

func (l *refLister) ref(ref refs.Ref) error {
	line := protocol.RefLine{Name: ref.Name, ID: ref.ID}
	if l.request.Symrefs {
		line.Target = ref.Target
	}
	if l.request.Peel {
		peeled, _, err := l.repo.PeelRef(ref)
		if err != nil {
			return err
		}
		line.Peeled = peeled
	}
	return l.add(line)
}

func (l *refLister) add(line protocol.RefLine) error {
	l.Buf = protocol.AppendRef(l.Buf, line)
	return l.EndRef()
}

// covers reports whether a name begins with one of the prefixes; no prefixes cover all names.
func covers(prefixes []string, name string) bool {
	for _, p := range prefixes {
		if len(p) <= len(name) && name[:len(p)] == p {
			return true
		}
	}
	return len(prefixes) == 0
}
