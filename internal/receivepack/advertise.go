package receivepack

import (
	"context"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/repo"
)

// advertiseSize is how much of a long list of refs is sent at once, in bytes.
const advertiseSize = 256 << 10

// errOff is what who pushes is told where no pushes are taken.
func errOff() error { return fault.New(fault.Denied, "this server does not accept pushes") }

// Advertise begins a push: what the server can do and which refs there are, HEAD and hidden ones not among them (gitprotocol-pack(5), "Reference
// Discovery"). There is no version 2 of pushes; as with git, who asks for it gets version 0. Nor is there a word of what the repository
// borrows objects from (".have"): a fork would tell who may push to it of commits that they may not read.
func (s *Server) Advertise(ctx context.Context, r *repo.Repo, session node.Session, sessionID string, reply node.ResponseWriter) (
	node.Outcome, error) {
	outcome := node.Outcome{Command: node.CommandPush}
	if s.options.Runner == nil {
		return outcome, errOff()
	}
	policy, err := r.PushPolicy()
	if err != nil {
		return outcome, err
	}
	if _, err := s.ownHooks(r); err != nil {
		return outcome, err
	}
	snapshot, err := r.Refs.Snapshot(ctx)
	if err != nil {
		return outcome, err
	}
	shallow, err := r.Shallow()
	if err != nil {
		return outcome, err
	}
	if on := policy.SessionID; on != nil && !*on || on == nil && !s.options.SessionID {
		sessionID = ""
	}
	outcome.Session = sessionID
	a := &advertiser{policy: policy, reply: reply, stateless: session.Stateless, outcome: &outcome, features: s.features(r, policy, sessionID)}
	if session.Version == protocol.V1 {
		a.buf = pktline.AppendLine(a.buf, "version 1")
	}
	if err := snapshot.Unhidden().Each("", a.ref); err != nil {
		return outcome, err
	}
	if outcome.Refs == 0 {
		a.buf = protocol.AppendNoRefs(a.buf, r.Format, a.features)
	}
	for _, id := range shallow {
		a.buf = pktline.AppendLine(a.buf, "shallow "+id.String())
		if err := a.room(); err != nil {
			return outcome, err
		}
	}
	return outcome, a.finish()
}

// features lists the capabilities in git's order (gitprotocol-capabilities(5)). No certificates of pushes are among them.
func (s *Server) features(r *repo.Repo, p *repo.PushPolicy, sessionID string) string {
	var b strings.Builder
	b.WriteString("report-status report-status-v2 delete-refs side-band-64k quiet")
	for _, c := range []struct {
		on   bool
		text string
	}{
		{p.Atomic, "atomic"}, {p.OffsetDeltas, "ofs-delta"}, {s.offersOptions(p), "push-options"}, {sessionID != "", "session-id=" + sessionID},
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

// advertiser writes a list of refs: a short one at once with its length known, a long one in pieces.
type advertiser struct {
	policy    *repo.PushPolicy
	reply     node.ResponseWriter
	outcome   *node.Outcome
	features  string
	stateless bool
	buf       []byte
	written   bool // a piece of it
}

func (a *advertiser) ref(ref refs.Ref) error {
	if a.policy.Hides(ref.Name) {
		return nil
	}
	features := ""
	if a.outcome.Refs == 0 {
		features = a.features
	}
	a.buf = protocol.AppendAdvertised(a.buf, protocol.RefLine{Name: ref.Name, ID: ref.ID}, features)
	a.outcome.Refs++
	return a.room()
}

// room sends what has come together, if it is much.
func (a *advertiser) room() error {
	if len(a.buf) < advertiseSize {
		return nil
	}
	if !a.written {
		a.written = true
		if err := a.reply.StartBulk(false); err != nil {
			return err
		}
	}
	_, err := a.reply.Write(a.buf)
	a.buf = a.buf[:0]
	return err
}

func (a *advertiser) finish() error {
	a.buf = pktline.AppendFlush(a.buf)
	if !a.written && a.stateless {
		a.reply.SetLength(int64(len(a.buf)))
	}
	_, err := a.reply.Write(a.buf)
	return err
}
