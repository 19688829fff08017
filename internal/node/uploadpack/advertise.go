package uploadpack

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Advertise begins a session: with the capabilities in version 2, with all refs before that. The caller has checked
// that the latest known refs are current (refs.Store.SnapshotOf).
func (s *Server) Advertise(ctx context.Context, r *repo.Repo, session node.Session, sessionID string,
	response node.ResponseWriter) (node.Outcome, error) {
	offer := s.offer(r, session)
	outcome := node.Outcome{}
	if offer.Session {
		outcome.Session = sessionID
	}
	if session.Version == protocol.V2 {
		if session.Offer != nil {
			offer = offer.And(*session.Offer)
		}
		b := protocol.Capabilities{Agent: s.options.Agent, Format: r.Format, Offer: offer,
			SessionID: sessionID}.Append(nil)
		if session.Stateless {
			response.SetLength(int64(len(b)))
		}
		_, err := response.Write(b)
		return outcome, err
	}
	snapshot, err := r.Refs.SnapshotOf(ctx, nil)
	if err != nil {
		return outcome, err
	}
	s.NoteRefs(r, snapshot)
	pooled := getScratch()
	a := advertiser{RefList: node.RefList{Buf: pooled.buf, Response: response, Outcome: &outcome,
		HasLength: session.Stateless}, repo: r}
	defer func() { pooled.buf = a.Buf; putScratch(pooled) }()
	head := snapshot.Head()
	a.features = protocol.Features{
		Agent: s.options.Agent, Format: r.Format, SessionID: outcome.Session, NoDone: session.Stateless,
		Filter: offer.Filter, AllowTip: r.Policy().AllowTip, AllowReachable: r.Policy().AllowReachable &&
			s.wantRule(r, session) != WantsTip,
	}
	if !head.ID.IsZero() {
		a.features.Head = head.Target
	}
	if outcome.Dangling, err = isDangling(snapshot); err != nil {
		return outcome, err
	}
	if session.Version == protocol.V1 {
		a.Buf = pktline.AppendLine(a.Buf, "version 1")
	}
	err = a.refs(snapshot, head) // fills the outcome
	return outcome, err
}

// advertiser makes the reference discovery of versions 0 and 1 (gitprotocol-pack(5), "Reference Discovery").
type advertiser struct {
	node.RefList
	repo     *repo.Repo
	features protocol.Features
}

func (a *advertiser) refs(snapshot *refs.Snapshot, head refs.Head) error {
	if !head.ID.IsZero() {
		ref, _, err := snapshot.Lookup(git.HEAD)
		if err == nil {
			err = a.ref(ref)
		}
		if err != nil {
			return err
		}
	}
	if err := snapshot.Each("", a.ref); err != nil {
		return err
	}
	if a.Outcome.Refs == 0 && a.repo.Format != git.SHA1 {
		// Like git since 2.41, so that the client learns the object format. Some clients assume SHA-1 and cannot parse
		// the line: isomorphic-git up to 1.21 cannot clone otherwise.
		a.Buf = protocol.AppendNoRefs(a.Buf, a.repo.Format, a.features.String())
	}
	shallow, err := a.repo.Shallow()
	if err != nil {
		return err
	}
	for _, id := range shallow {
		lines := protocol.Lines{Buf: a.Buf}
		lines.ID("shallow", id)
		a.Buf = lines.Buf
		if err := a.EndLine(); err != nil {
			return err
		}
	}
	return a.End()
}

func (a *advertiser) ref(ref refs.Ref) (err error) {
	line := protocol.RefLine{Name: ref.Name, ID: ref.ID}
	if line.Peeled, _, err = a.repo.PeelRef(ref); err != nil {
		return err
	}
	features := ""
	if a.Outcome.Refs == 0 {
		features = a.features.String()
	}
	a.Buf = protocol.AppendAdvertised(a.Buf, line, features)
	return a.EndRef()
}
