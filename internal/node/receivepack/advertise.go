package receivepack

import (
	"context"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
)

// advertiseSize is the size of the pieces in which a long list of refs is sent, in bytes.
const advertiseSize = 256 << 10

// Advertise begins a push: it sends the capabilities and the refs, except HEAD and hidden ones (gitprotocol-pack(5),
// "Reference Discovery"). Pushes have no protocol version 2. As with Git, clients that ask for it get version 0. There
// are no ".have" lines for alternates: they would reveal commits of the lender that a pusher to a fork may not read.
// The caller has checked that the latest known refs are current (refs.Store.SnapshotOf).
func (s *Server) Advertise(ctx context.Context, r *repo.Repo, session node.Session, sessionID string,
	response node.ResponseWriter) (node.Outcome, error) {
	outcome := node.Outcome{Command: node.CommandPush}
	policy, err := r.PushPolicy()
	if err != nil {
		return outcome, err
	}
	if _, err := s.repositoryHooks(r); err != nil {
		return outcome, err
	}
	snapshot, err := r.Refs.SnapshotOf(ctx, nil)
	if err != nil {
		return outcome, err
	}
	shallow, err := r.Shallow()
	if err != nil {
		return outcome, err
	}
	if on := policy.SessionID; on != nil && !*on {
		sessionID = ""
	}
	outcome.Session = sessionID
	a := &advertiser{policy: policy, response: response, stateless: session.Stateless, outcome: &outcome,
		capabilities: s.capabilities(r, policy, sessionID)}
	if session.Version == protocol.V1 {
		a.buf = pktline.AppendLine(a.buf, "version 1")
	}
	if err := snapshot.Unhidden().Each("", a.ref); err != nil {
		return outcome, err
	}
	if outcome.Refs == 0 {
		a.buf = protocol.AppendNoRefs(a.buf, r.Format, a.capabilities)
	}
	for _, id := range shallow {
		a.buf = pktline.AppendLine(a.buf, "shallow "+id.String())
		if err := a.flushFull(); err != nil {
			return outcome, err
		}
	}
	return outcome, a.finish()
}

// capabilities lists the capabilities in Git's order (gitprotocol-capabilities(5)). Push certificates are not
// supported.
func (s *Server) capabilities(r *repo.Repo, p *repo.PushPolicy, sessionID string) string {
	var b strings.Builder
	b.WriteString("report-status report-status-v2 delete-refs side-band-64k quiet")
	for _, c := range []struct {
		on   bool
		text string
	}{
		{p.Atomic, "atomic"}, {p.OffsetDeltas, "ofs-delta"}, {s.offersOptions(p), "push-options"},
		{sessionID != "", "session-id=" + sessionID},
		{true, "object-format=" + r.Format.String()}, {true, "agent=" + s.options.Agent},
	} {
		if c.on {
			b.WriteString(" " + c.text)
		}
	}
	return b.String()
}

func (s *Server) offersOptions(p *repo.PushPolicy) bool {
	return s.options.MaxOptions > 0 && (p.Options == nil || *p.Options)
}

// advertiser writes a list of refs: a short one with its length, a long one in pieces.
type advertiser struct {
	policy       *repo.PushPolicy
	response     node.ResponseWriter
	outcome      *node.Outcome
	capabilities string
	stateless    bool
	buf          []byte
	written      bool // a piece was written
}

func (a *advertiser) ref(ref refs.Ref) error {
	if a.policy.Hides(ref.Name) {
		return nil
	}
	capabilities := ""
	if a.outcome.Refs == 0 {
		capabilities = a.capabilities
	}
	a.buf = protocol.AppendAdvertised(a.buf, protocol.RefLine{Name: ref.Name, ID: ref.ID}, capabilities)
	a.outcome.Refs++
	return a.flushFull()
}

// flushFull writes the buffer when it is full.
func (a *advertiser) flushFull() error {
	if len(a.buf) < advertiseSize {
		return nil
	}
	if !a.written {
		a.written = true
		if err := a.response.StartBulk(false); err != nil {
			return err
		}
	}
	_, err := a.response.Write(a.buf)
	a.buf = a.buf[:0]
	return err
}

func (a *advertiser) finish() error {
	a.buf = pktline.AppendFlush(a.buf)
	if !a.written && a.stateless {
		a.response.SetLength(int64(len(a.buf)))
	}
	_, err := a.response.Write(a.buf)
	return err
}
