// Package uploadpack serves fetch sessions: advertise refs, negotiate, send a pack. It speaks version 2 of the protocol
// (gitprotocol-v2(5)) and versions 0 and 1 (gitprotocol-pack(5)).
//
// The session of each version reads in the order of the protocol document; below them is one negotiation, the type
// fetch. Refs, existence, negotiation and shallow boundaries are answered in process; the pack comes from a
// packsource.Source. What is negotiated is brought into canonical form, a packsource.Spec, so that requests that mean
// the same share one pack.
package uploadpack

import (
	"context"
	"runtime"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/packsource"
	"github.com/packhorse-git/packhorse/internal/repo"
)

// Wants says which objects a client may ask for.
type Wants string

const (
	// WantsAny allows every object that exists, as git's own version 2 server does. Only right where everybody may read
	// everything in the repository's object store.
	WantsAny Wants = "any"
	// WantsReachable allows what the visible refs reach.
	WantsReachable Wants = "reachable"
	// WantsTip allows what a visible ref points at.
	WantsTip Wants = "tip"
	// WantsAuto is WantsReachable where the session says that not everybody may read everything, and WantsAny
	// elsewhere.
	WantsAuto Wants = "auto"
)

// Options says how sessions are served.
type Options struct {
	Agent  string // how the server names itself
	Wants  Wants  // WantsAny falls back to WantsReachable in a repository that borrows objects from others
	Limits protocol.Limits
	Warmup *Warmup // nil: no pack is made before somebody asks. The source has to be a Warmer.
}

// Server serves sessions. Safe for concurrent use.
type Server struct {
	source  packsource.Source
	keeper  keeper // the source, if it keeps packs; else nil
	options Options
	tags    memo[[]packsource.Tag] // annotated tags, sorted by ID
	tips    memo[[]git.ObjectID]   // what the refs point at, sorted
	allTips memo[[]git.ObjectID]   // the same with the hidden ones
	sets    memo[*tipSets]
	answers answers
	warmth  *warmth // nil: none

	searches chan struct{} // slots of searches in trees
}

// keeper is a source that can tell whether it has a pack already.
type keeper interface {
	Has(key packsource.Key) bool
}

// New makes a Server that takes its packs from source.
func New(source packsource.Source, o Options) *Server {
	if o.Wants == "" {
		o.Wants = WantsReachable
	}
	kept, _ := source.(keeper)
	return &Server{source: source, keeper: kept, options: o, warmth: newWarmth(source, o.Warmup),
		searches: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
}

// Serve answers one request on reply; in a session of version 0 or 1 with state that is all that the client says after
// the advertisement. An error that comes before anything was written can be rendered as the transport likes. Once the
// answer has begun, Serve tells the client in the answer where the protocol allows it, and returns a
// node.ReportedError; after any other error what was sent is no whole answer.
func (s *Server) Serve(ctx context.Context, r *repo.Repo, session node.Session, request *pktline.Reader,
	reply node.ResponseWriter) (
	node.Outcome, error) {
	start := time.Now()
	caller := balance.Caller(session.Caller)
	session.Caller = "" // the answer is the same for everybody
	question, err := s.answers.ask(ctx, r, session, request)
	if err != nil { // of a fetch: nothing else is looked up
		return node.Outcome{Command: protocol.CommandFetch}, err
	}
	if known := question.answer; known != nil {
		outcome := known.outcome
		outcome.Negotiate = time.Since(start)
		f := &fetch{Server: s, repo: r, caller: caller, outcome: &outcome, start: start}
		if known.shape != nil {
			s.warmth.shapes.again(known.shape)
		}
		err := f.send(ctx, known.spec, known.sections, known.form, reply) // fills the outcome
		f.noted(known.shape, known.spec)
		return outcome, err
	}
	outcome := node.Outcome{}
	f := &fetch{Server: s, repo: r, session: session, caller: caller, question: question, outcome: &outcome,
		start: start, hold: reply.ReserveMemory}
	limits := s.options.Limits
	limits.Hold = reply.ReserveMemory
	if session.Version != protocol.V2 {
		err := f.serveV0(ctx, session, request, limits, reply) // fills the outcome
		return outcome, err
	}
	req, err := protocol.ReadRequest(request, r.Format, s.offer(r, session), limits)
	outcome.Parse = time.Since(start)
	if err != nil {
		return outcome, err
	}
	if req == nil {
		reply.SetLength(0)
		return outcome, nil
	}
	outcome.Command, outcome.Agent, outcome.Session = req.Command(), req.Agent, req.SessionID
	switch {
	case req.LsRefs != nil:
		err := s.lsRefs(ctx, r, req.LsRefs, reply, &outcome) // fills the outcome
		return outcome, err
	case req.ObjectInfo != nil:
		return outcome, objectInfo(ctx, r, req.ObjectInfo, reply)
	case req.BundleURI:
		return outcome, bundleURI(r, reply)
	}
	if err := checkFilter(&r.Policy().Filters, req.Fetch.Filter); err != nil {
		return outcome, err
	}
	f.request = req.Fetch
	err = f.serveV2(ctx, reply)
	return outcome, err
}

// lsRefs answers the ls-refs command.
func (s *Server) lsRefs(ctx context.Context, r *repo.Repo, req *protocol.LsRefs, reply node.ResponseWriter,
	outcome *node.Outcome) error {
	snapshot, err := r.Refs.Snapshot(ctx)
	if err != nil {
		return err
	}
	l := refLister{refWriter: newRefWriter(reply, outcome), server: s, repo: r, request: req}
	defer l.release()
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
	return l.finish()
}

// isDangling reports whether HEAD names a branch that does not exist where others do: a clone checks out nothing.
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

// refLister makes an ls-refs answer.
type refLister struct {
	refWriter
	server  *Server
	repo    *repo.Repo
	request *protocol.LsRefs
}

// head lists HEAD, if a prefix covers it; an unborn one only if the client asked for that and, as with git, for
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
		peeled, err := l.server.peeled(l.repo, refs.Ref{Name: git.HEAD, ID: head.ID})
		if err != nil {
			return err
		}
		line.Peeled = peeled
	}
	return l.add(line)
}

func (l *refLister) ref(ref refs.Ref) error {
	line := protocol.RefLine{Name: ref.Name, ID: ref.ID}
	if l.request.Symrefs {
		line.Target = ref.Target
	}
	if l.request.Peel {
		peeled, err := l.server.peeled(l.repo, ref)
		if err != nil {
			return err
		}
		line.Peeled = peeled
	}
	return l.add(line)
}

func (l *refLister) add(line protocol.RefLine) error {
	l.buf = protocol.AppendRef(l.buf, line)
	return l.added()
}

// peeled tells what an annotated tag peels to; zero for anything else. A ref to an object that is missing or damaged is
// shown without a peeled value, as git does: one such tag must not cost the others. Of that nothing is remembered, as
// the object may be mended.
func (s *Server) peeled(r *repo.Repo, ref refs.Ref) (git.ObjectID, error) {
	peeled, _, err := s.peel(r, ref)
	return peeled, err
}

// peel is peeled, and tells whether that is known: not of an object that is missing or damaged.
func (s *Server) peel(r *repo.Repo, ref refs.Ref) (peeled git.ObjectID, known bool, err error) {
	if ref.PeelKnown {
		return ref.Peeled, true, nil
	}
	peeled, err = r.Refs.Peeled(ref, func(id git.ObjectID) (git.ObjectID, error) {
		peeled, _, err := r.Graph.Peel(id)
		if err == nil && peeled == id {
			return git.ObjectID{}, nil
		}
		return peeled, err
	})
	switch fault.KindOf(err) {
	case fault.NotFound, fault.Corrupt, fault.Invalid:
		return git.ObjectID{}, false, nil
	}
	return peeled, err == nil, err
}

// covers tells whether a name begins with one of the prefixes; no prefixes cover all.
func covers(prefixes []string, name string) bool {
	for _, p := range prefixes {
		if len(p) <= len(name) && name[:len(p)] == p {
			return true
		}
	}
	return len(prefixes) == 0
}
