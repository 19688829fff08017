package mirror

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
)

// pushTarget is the repository at the origin that a push to a mirror goes to.
type pushTarget struct {
	rule   *Rule
	path   string  // at the origin
	mirror *mirror // nil: the repository was not mirrored yet
}

// pushTarget returns the target of a push; nil if the repository is not a mirror. Errors: Denied if the push cannot go
// to the origin.
func (n *Node) pushTarget(ctx context.Context, path git.RepoPath, session node.Session) (*pushTarget, error) {
	rule, originPath, ok := n.mirrors.find(path)
	if !ok {
		if n.mirrors.isMirror(path) {
			return nil, fault.New(fault.NotFound, "no rule allows the mirror %s any more", path)
		}
		return nil, nil
	}
	r, err := n.mirrors.openExisting(ctx, path)
	if err != nil {
		return nil, err
	}
	if r == nil {
		if _, err := n.Directory(path); err == nil {
			return nil, nil // an own repository
		}
	} else {
		originPath = r.originPath()
	}
	if !rule.PushToOrigin || !session.Stateless || !rule.Origin.CanRelay() || !rule.OriginDecides {
		return nil, fault.New(fault.Denied, "this is a mirror: push to %s",
			strings.TrimSuffix(rule.URL.String(), "/")+"/"+originPath)
	}
	return &pushTarget{rule: rule, path: originPath, mirror: r}, nil
}

// advertisePush begins a push to a mirror with the origin's advertisement.
func (n *Node) advertisePush(ctx context.Context, path git.RepoPath, session node.Session,
	response node.ResponseWriter) (node.Outcome, error) {
	target, err := n.pushTarget(ctx, path, session)
	switch {
	case err != nil:
		return node.Outcome{}, err
	case target == nil:
		return n.Node.Advertise(ctx, path, session, response)
	}
	start := time.Now()
	body, err := advertised(target.rule.Origin.Advertisement(ctx, target.path, session.Authorization,
		gitProtocol(session.Version)))
	outcome := node.Outcome{Mirror: node.MirrorRelay, OriginTime: time.Since(start)}
	if err != nil {
		return outcome, err
	}
	defer body.Close()
	_, err = io.Copy(response, body)
	return outcome, err
}

// advertised returns an advertisement without the line of HTTP about the service, which the gateway adds
// (gitprotocol-http(5), "Smart Server Response").
func advertised(r *origin.Response, err error) (io.ReadCloser, error) {
	if err != nil {
		return nil, err
	}
	head := make([]byte, 4)
	_, err = io.ReadFull(r.Body, head)
	if n, bad := pktline.ParseLength(head); err == nil && bad == nil && n > 4 && n < 100 {
		line := make([]byte, n-4+len("0000"))
		if _, err = io.ReadFull(r.Body, line); err == nil && bytes.HasPrefix(line, []byte("# service=")) {
			return r.Body, nil
		}
	}
	_ = r.Body.Close()
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return nil, fault.Wrap(fault.Unavailable, "the origin sent an invalid advertisement", err)
}

// ReceivePack serves a push. A push to a mirror goes to the origin with the caller's own credential, unchanged. The
// origin's report is held back until the mirror has the pushed state, but not longer than updateWait.
func (n *Node) ReceivePack(ctx context.Context, path git.RepoPath, session node.Session, pusher node.Pusher,
	request io.Reader, response node.ResponseWriter) (node.Outcome, error) {
	target, err := n.pushTarget(ctx, path, session)
	switch {
	case err != nil:
		return node.Outcome{}, err
	case target == nil:
		return n.Node.ReceivePack(ctx, path, session, pusher, request, response)
	}
	start := time.Now()
	outcome := node.Outcome{Command: node.CommandPush, Mirror: node.MirrorRelay}
	sent := &pushBody{r: request}
	whole, length := io.Reader(sent), session.Length
	if !pusher.Rules.IsZero() {
		var refusal []byte
		if whole, refusal, err = checkRules(&pusher.Rules, sent, response); refusal != nil {
			if _, drained := io.Copy(io.Discard, whole); drained != nil {
				return outcome, drained
			}
			_, failed := response.Write(refusal)
			return outcome, cmp.Or(failed, err)
		}
		if err != nil {
			sent.stop(true)
			return outcome, err
		}
	}
	if length <= 0 {
		if whole, length, err = readAhead(whole, response); err != nil {
			return outcome, err
		}
	}
	body, err := bodyOf(target.rule.Origin.Relay(ctx, target.path, protocol.ReceivePack, session.Authorization,
		gitProtocol(session.Version), whole, length))
	if err != nil {
		sent.stop(true)
		outcome.OriginTime = time.Since(start)
		return outcome, err
	}
	report, err := passMessages(body, response) // the origin may have begun its answer before the end of the push
	_ = body.Close()
	sent.stop(err != nil)
	if target.mirror != nil { // even after an error: the origin may have changed
		_, _ = target.mirror.check(ctx, session.Authorization, true)
	}
	outcome.OriginTime = time.Since(start)
	if err != nil {
		return outcome, err
	}
	_, err = response.Write(report)
	return outcome, err
}

// maxRuled is the maximum size in bytes of the commands of a push that are compared with rules.
const maxRuled = 4 << 20

// checkRules looks for updates that the rules of the caller do not permit, and returns the whole body. The mirror does
// not have the new commits, so that a change of an existing ref counts as forced. If an update is not permitted,
// nothing may be sent to the origin: then err is a node.ReportedError, and refusal is Git's report to the client.
func checkRules(rules *node.RefRules, body io.Reader, response node.ResponseWriter) (whole io.Reader, refusal []byte,
	err error) {
	if err := response.ReserveMemory(3 * maxRuled); err != nil {
		return nil, nil, err
	}
	var head bytes.Buffer
	var capabilities []byte
	report := pktline.AppendLine(nil, "unpack ok")
	var refused error // the first reason
	packets := pktline.NewReader(io.TeeReader(io.LimitReader(body, maxRuled), &head))
	for {
		kind, data, err := packets.Next()
		if err != nil {
			return nil, nil, fault.Wrap(fault.Invalid, "the push is invalid, or has too many refs for rules", err)
		}
		if kind != pktline.Data {
			break
		}
		line, list, has := bytes.Cut(bytes.TrimSuffix(data, []byte("\n")), []byte{0})
		if has {
			capabilities = bytes.Clone(list)
		}
		if bytes.HasPrefix(line, []byte("shallow ")) {
			continue
		}
		ref, reason, err := refusedCommand(rules, line)
		if err != nil {
			return nil, nil, err
		}
		if reason == "" {
			report = pktline.AppendLine(report, "ng "+ref+" not pushed: another ref is"+node.RefusedBy+"a rule")
			continue
		}
		if refused == nil {
			refused = fault.New(fault.Denied, "%s: %s", fault.Short(ref), reason)
		}
		report = pktline.AppendLine(report, "ng "+ref+" "+reason)
	}
	whole = io.MultiReader(&head, body)
	if refused == nil {
		return whole, nil, nil
	}
	report = pktline.AppendFlush(report)
	if !bytes.Contains(capabilities, []byte("report-status")) {
		return nil, nil, refused
	}
	if bytes.Contains(capabilities, []byte("side-band-64k")) {
		for part := range slices.Chunk(report, 60_000) {
			refusal = pktline.AppendBand(refusal, pktline.BandData, part)
		}
		report = pktline.AppendFlush(refusal)
	}
	return whole, report, &node.ReportedError{Err: refused}
}

// refusedCommand returns the ref of a command, and why the rules do not permit it; "" if they do.
func refusedCommand(rules *node.RefRules, line []byte) (ref, reason string, err error) {
	fields := bytes.SplitN(line, []byte(" "), 3)
	if len(fields) != 3 {
		return "", "", fault.New(fault.Invalid, "invalid push: expected old/new/ref, got %.80q", line)
	}
	before, err := git.ParseObjectID(fields[0])
	if err != nil {
		return "", "", fault.Wrap(fault.Invalid, "invalid push", err)
	}
	after, err := git.ParseObjectID(fields[1])
	if err != nil {
		return "", "", fault.Wrap(fault.Invalid, "invalid push", err)
	}
	name, err := git.ParseRefName(string(fields[2]))
	if err != nil {
		return "", "", fault.Wrap(fault.Invalid, "invalid push", err)
	}
	return string(name), rules.Refusal(name, node.RefChangesOf(name, before, after)), nil
}

// aheadBytes is the maximum size of a body that is sent with its length if the client did not send that. Git does the
// same (http.postBuffer).
const aheadBytes = 1 << 20

// readAhead returns the body with its length if it is short. Some servers do not accept a body of unknown length.
func readAhead(body io.Reader, response node.ResponseWriter) (whole io.Reader, length int64, err error) {
	if err := response.ReserveMemory(aheadBytes); err != nil {
		return nil, 0, err
	}
	var ahead bytes.Buffer
	n, err := io.CopyN(&ahead, body, aheadBytes)
	switch {
	case err == io.EOF:
		return &ahead, n, nil
	case err != nil:
		return nil, 0, err
	}
	return io.MultiReader(&ahead, body), -1, nil
}

// pushBody is the body of a push. The connection to the origin may read from it after the origin has answered.
type pushBody struct {
	mu      sync.Mutex // held during a Read
	r       io.Reader
	stopped atomic.Bool
	ended   atomic.Bool
}

// Read implements io.Reader.
func (b *pushBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped.Load() {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := b.r.Read(p)
	if err != nil {
		b.ended.Store(true)
	}
	return n, err
}

// stop waits until the body is not read any more. interrupt ends a Read that waits for the client.
func (b *pushBody) stop(interrupt bool) {
	b.stopped.Store(true)
	if client, ok := b.r.(interface{ Interrupt() }); ok && interrupt && !b.ended.Load() {
		client.Interrupt()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
}

// maxReport is the maximum size of a report in bytes.
const maxReport = 64 << 20

// passMessages sends the messages on side-band 2 to the client as they arrive, and returns the other packets.
func passMessages(origin io.Reader, response node.ResponseWriter) (report []byte, err error) {
	packets := pktline.NewReader(origin)
	held := 0
	for {
		kind, payload, err := packets.Next()
		switch {
		case err == io.EOF:
			return report, nil
		case err != nil:
			return nil, fault.Wrap(fault.Unavailable, "the origin received the push, but its report broke off", err)
		case kind == pktline.Flush:
			report = pktline.AppendFlush(report)
		case kind != pktline.Data:
			return nil, fault.New(fault.Unavailable, "the origin received the push, but its report is invalid")
		case len(payload) > 0 && pktline.Band(payload[0]) == pktline.BandProgress && len(report) == 0:
			if _, err = response.Write(pktline.Append(nil, payload)); err == nil {
				err = response.Flush()
			}
			if err != nil {
				return nil, &node.ClientConnError{Err: err}
			}
		default:
			report = pktline.Append(report, payload)
		}
		if len(report) > held+requestStep {
			if err := response.ReserveMemory(int64(len(report) - held)); err != nil {
				return nil, err
			}
			held = len(report)
		}
		if len(report) > maxReport {
			return nil, fault.New(fault.Unavailable, "the origin received the push, but its report is too long")
		}
	}
}
