package receivepack

import (
	"bytes"
	"context"
	"io"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Change is a push that a program requests by a call.
type Change struct {
	Pusher  node.Pusher
	Options []string // push options
	Updates []Update
	Atomic  bool      // all updates or none
	Pack    io.Reader // the new objects
}

// Changed is the result of a Change.
type Changed struct {
	Refused  []error  // by update, why it was not made
	Messages []string // lines of hooks and of the server for the user
}

// Change makes a change with git receive-pack, like a push. An error means that no update is known to have been made.
// Otherwise each update has its own result. An error of kind Aborted is about the value of a ref.
func (s *Server) Change(ctx context.Context, t Target, c Change) (Changed, error) {
	request, err := s.requestOf(t, c)
	if err != nil {
		return Changed{}, err
	}
	response := &changeResponse{}
	session := node.Session{Stateless: true, Caller: c.Pusher.Name}
	outcome, err := s.Serve(ctx, t, session, c.Pusher, io.MultiReader(bytes.NewReader(request), c.Pack), response)
	changed := Changed{Messages: response.lines(), Refused: make([]error, len(c.Updates))}
	results := make(map[string]node.RefUpdate)
	isMade := false
	for _, u := range outcome.Push.Updates {
		results[u.Ref] = u
		isMade = isMade || u.Result == node.UpdateOK
	}
	if err != nil && !isMade && (!outcome.Reported() || outcome.Reason == reasonLocked) {
		return changed, explained(fault.KindOf(err), strings.TrimPrefix(fault.Message(err), "the push was refused: "), err,
			changed.Messages)
	}
	for i, u := range c.Updates {
		if result := results[string(u.Ref)]; result.Result != node.UpdateOK {
			changed.Refused[i] = refusedUpdate(result, outcome.Reason, err, changed.Messages)
		}
	}
	return changed, nil
}

// requestOf returns the request of a client that pushes the change, up to its pack.
func (s *Server) requestOf(t Target, c Change) ([]byte, error) {
	policy, err := t.PushPolicy()
	if err != nil {
		return nil, err
	}
	capabilities := "\x00 report-status side-band-64k object-format=" + t.Format.String()
	if c.Atomic && len(c.Updates) > 1 {
		if !policy.Atomic {
			return nil, fault.New(fault.Precondition, "the repository does not accept atomic pushes (receive.advertiseAtomic)")
		}
		capabilities += " atomic"
	}
	if len(c.Options) > 0 {
		if !s.offersOptions(policy) {
			return nil, fault.New(fault.Precondition, "the repository does not accept push options")
		}
		capabilities += " push-options"
	}
	var b []byte
	for _, u := range c.Updates {
		b = pktline.AppendLine(b, hexID(t, u.Old)+" "+hexID(t, u.New)+" "+string(u.Ref)+capabilities)
		capabilities = ""
	}
	b = pktline.AppendFlush(b)
	if len(c.Options) > 0 {
		for _, option := range c.Options {
			b = pktline.AppendLine(b, option)
		}
		b = pktline.AppendFlush(b)
	}
	return b, nil
}

// hexID returns an ID in hexadecimal digits, also the zero one.
func hexID(t Target, id git.ObjectID) string {
	if id.IsZero() {
		return strings.Repeat("0", t.Format.HexSize())
	}
	return id.String()
}

// refusedUpdate returns the error of an update that was not made. whole is the error of the push, with its reason.
func refusedUpdate(u node.RefUpdate, reason string, whole error, messages []string) error {
	if u.Result == node.UpdateUnknown {
		return fault.Wrap(fault.Deadline, "the result is unknown: check "+u.Ref+" before you repeat the call", whole)
	}
	own, kind := classify("", u.Result, "")
	switch own {
	case reasonConflict:
		kind = fault.Aborted
		if strings.Contains(u.Result, "conflict") || strings.Contains(u.Result, "non-fast-forward") {
			kind = fault.Precondition
		}
	case reasonQuota:
		kind = fault.Full
	case reasonInternal:
		kind = fault.KindOf(whole)
	case reasonHook: // one that could not decide has another kind
		if reason == reasonHook {
			kind = fault.KindOf(whole)
		}
	}
	return explained(kind, u.Ref+": "+u.Result, whole, messages)
}

// explained returns an error with the lines for the user.
func explained(kind fault.Kind, message string, cause error, lines []string) error {
	if text := strings.Join(lines, "\n"); text != "" {
		message += "\n" + text[:min(len(text), maxFailure)]
	}
	return &fault.Error{Kind: kind, Msg: message, RetryAfter: fault.RetryAfter(cause), Err: cause}
}

// changeResponse keeps the lines for the user from the response to a push.
type changeResponse struct{ packets bytes.Buffer }

func (r *changeResponse) Write(b []byte) (int, error) {
	if r.packets.Len()+len(b) > maxReport {
		return 0, fault.New(fault.Internal, "the response to a change is longer than %d bytes", maxReport)
	}
	return r.packets.Write(b)
}

func (r *changeResponse) SetLength(int64)           {}
func (r *changeResponse) StartBulk(bool) error      { return nil }
func (r *changeResponse) Flush() error              { return nil }
func (r *changeResponse) ReserveMemory(int64) error { return nil }

// lines returns the lines of sideband 2.
func (r *changeResponse) lines() (lines []string) {
	var text strings.Builder
	for packets := pktline.NewReader(&r.packets); ; {
		kind, data, err := packets.Next()
		if err != nil {
			break
		}
		if kind == pktline.Data && len(data) > 0 && pktline.Band(data[0]) == pktline.BandProgress {
			text.Write(data[1:])
		}
	}
	for line := range strings.SplitSeq(text.String(), "\n") {
		if line = strings.TrimSpace(clean(line, len(line))); line != "" {
			lines = append(lines, strings.ToValidUTF8(line, "\ufffd"))
		}
	}
	return lines
}
