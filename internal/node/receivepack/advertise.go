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
	capabilities := s.capabilities(r, policy, sessionID)
	list := node.RefList{Response: response, Outcome: &outcome, HasLength: session.Stateless}
	if session.Version == protocol.V1 {
		list.Buf = pktline.AppendLine(list.Buf, "version 1")
	}
	err = snapshot.Unhidden().Each("", func(ref refs.Ref) error {
		if policy.Hides(ref.Name) {
			return nil
		}
		shown := ""
		if outcome.Refs == 0 {
			shown = capabilities
		}
		list.Buf = protocol.AppendAdvertised(list.Buf, protocol.RefLine{Name: ref.Name, ID: ref.ID}, shown)
		return list.EndRef()
	})
	if err != nil {
		return outcome, err
	}
	if outcome.Refs == 0 {
		list.Buf = protocol.AppendNoRefs(list.Buf, r.Format, capabilities)
	}
	for _, id := range shallow {
		list.Buf = pktline.AppendLine(list.Buf, "shallow "+id.String())
		if err := list.EndLine(); err != nil {
			return outcome, err
		}
	}
	err = list.End() // not in the return statement, which copies the outcome
	return outcome, err
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
