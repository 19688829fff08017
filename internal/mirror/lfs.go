package mirror

import (
	"context"
	"io"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// beginLFS is begin for a request of Git LFS. While the origin is down, the mirror is used as long as for fetches.
func (n *Node) beginLFS(ctx context.Context, path git.RepoPath, session node.Session, response node.ResponseWriter) (
	*exchange, error) {
	if n.mirrors.lfs == nil {
		return nil, nil // the storage node refuses it
	}
	x, err := n.begin(ctx, path, session, response)
	if x == nil || err != nil {
		return nil, err
	}
	if age, reason := x.mirror.outage(); age > 0 {
		result, err := x.mirror.judge(reason)
		if err != nil {
			return nil, err
		}
		x.noteAge(result.Age, result.Err)
	}
	return x, nil
}

// server returns the repository at the origin's LFS server.
func (x *exchange) server() origin.LFSRepository {
	return origin.LFSRepository{Origin: x.rule.Origin, Path: x.mirror.originPath(), Auth: x.credential()}
}

// LFSBatch returns the states of objects. The origin is asked about those that are not here.
func (n *Node) LFSBatch(ctx context.Context, path git.RepoPath, session node.Session, b lfs.Batch) ([]lfs.Status,
	node.Outcome, error) {
	if b.Upload {
		return n.uploadBatch(ctx, path, session, b)
	}
	x, err := n.beginLFS(ctx, path, session, nil)
	switch {
	case err != nil:
		return nil, node.Outcome{Command: node.CommandLFSBatch}, err
	case x == nil:
		return n.Node.LFSBatch(ctx, path, session, b)
	}
	states, outcome, err := n.Node.LFSBatch(ctx, x.mirror.path, x.session, b)
	x.outcome, x.outcome.Mirror = outcome, node.MirrorLocal
	if err == nil {
		err = x.askMissing(ctx, b, states)
		x.outcome.LFS.Refused, x.outcome.Reason = objects.Refusals(states)
	}
	return states, x.result(), err
}

// askMissing sets the states of objects that are not here, or have another size.
func (x *exchange) askMissing(ctx context.Context, b lfs.Batch, states []lfs.Status) error {
	l, url, all := x.mirrors.lfs, x.mirror.originURL(), b.Objects
	var unknown []lfs.Object
	var places []int
	for i, o := range all {
		switch {
		case states[i].State == lfs.Present:
		case o.Size > l.budget.limit:
			states[i] = lfs.Status{State: lfs.Refused, Err: l.budget.tooLarge(o)}
		default:
			if a := l.known(url, o); a != nil && !x.rule.Origin.IsStopped(a.URL) {
				states[i].State = lfs.Present
				continue
			}
			unknown, places = append(unknown, o), append(places, i)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	answers, err := x.askServer(ctx, lfs.Batch{Ref: b.Ref, Objects: unknown})
	if err != nil && (len(unknown) == len(all) || isOfCaller(err) || ctx.Err() != nil) {
		return err
	}
	for j, i := range places {
		if err != nil { // the others are served
			states[i] = lfs.Status{State: lfs.Refused, Err: err}
			continue
		}
		states[i] = answers[j].Status
	}
	return nil
}

// askServer asks the origin about objects and keeps its actions. If the origin does not answer, it notes the age of
// what is here.
func (x *exchange) askServer(ctx context.Context, b lfs.Batch) ([]origin.LFSAnswer, error) {
	start, url := time.Now(), x.mirror.originURL()
	x.outcome.Mirror = node.MirrorRelay
	answers, err := x.server().Batch(ctx, b)
	x.originTime += time.Since(start)
	caller := balance.Caller(x.session.Caller)
	if x.isRefusedAnonymous(err) && caller != "" && !caller.Anonymous() {
		// Unauthenticated would make clients forget their credential for this server
		err = fault.Wrap(fault.Denied, "the mirror does not have these LFS objects, and its origin sends them only to "+
			"callers with a credential for it", err)
	}
	if origin.IsDown(err) && x.age == 0 {
		if result, tooOld := x.mirror.judge(err); tooOld == nil {
			x.noteAge(result.Age, err)
		}
	}
	for i, a := range answers {
		if err == nil && a.State == lfs.Present {
			x.mirrors.lfs.remember(url, b.Objects[i], a.Action)
		}
	}
	return answers, err
}

// LFSDownload sends an object or a part of it. An object that is not here is downloaded from the origin, once for all
// clients that want it.
func (n *Node) LFSDownload(ctx context.Context, path git.RepoPath, session node.Session, d lfs.Download,
	response node.ResponseWriter) (node.Outcome, error) {
	x, err := n.beginLFS(ctx, path, session, response)
	switch {
	case err != nil:
		return node.Outcome{Command: node.CommandLFSDownload}, err
	case x == nil:
		return n.Node.LFSDownload(ctx, path, session, d, response)
	}
	if err = x.sendObject(ctx, d); fault.Is(err, fault.NotFound) || fault.Is(err, fault.Invalid) {
		err = x.fetchObject(ctx, d)
	}
	x.mirrors.metrics.sent(x.outcome.LFS.Cache)
	return x.result(), err
}

// sendObject sends an object that is here. The error is NotFound, before the response has begun, if it is not. It is
// Invalid if its file has another size, because it is damaged or the request has a wrong one.
func (x *exchange) sendObject(ctx context.Context, d lfs.Download) (err error) {
	l := x.mirrors.lfs
	defer l.budget.use(d.OID)()
	l.touch(ctx, x.mirror.path, d.Object)
	x.outcome, err = x.mirrors.node.LFSDownload(ctx, x.mirror.path, x.session, d, x.response)
	x.outcome.Mirror = node.MirrorLocal
	return err
}

// fetchObject sends an object that is not in the mirror. The origin has to say that the repository has it, before the
// object of another mirror is used.
func (x *exchange) fetchObject(ctx context.Context, d lfs.Download) error {
	if d.Offset < 0 || d.Offset > d.Size {
		return fault.New(fault.Invalid, "offset %d is outside of the object's %d bytes", d.Offset, d.Size)
	}
	l := x.mirrors.lfs
	action := l.known(x.mirror.originURL(), d.Object)
	if action == nil {
		answers, err := x.askServer(ctx, lfs.Batch{Objects: []lfs.Object{d.Object}})
		switch {
		case err != nil:
			return err
		case answers[0].State == lfs.Missing:
			return fault.New(fault.NotFound, "the repository has no LFS object %s", d.OID)
		case answers[0].State == lfs.Refused:
			return answers[0].Err
		}
		action = answers[0].Action
	}
	return l.send(ctx, x, d, action)
}

// uploadServer returns the LFS server that gets uploads and locks, with the credential of the caller. ok is false if
// the repository is not a mirror. The error is Denied if there is no credential, as over SSH.
func (n *Node) uploadServer(ctx context.Context, path git.RepoPath, session node.Session) (r origin.LFSRepository,
	ok bool, err error) {
	if n.mirrors.lfs == nil {
		return r, false, nil
	}
	session.Stateless = session.Stateless && !session.Authorization.IsZero()
	target, err := n.pushTarget(ctx, path, session)
	if target == nil || err != nil {
		return r, false, err
	}
	return origin.LFSRepository{Origin: target.rule.Origin, Path: target.path, Auth: session.Authorization}, true, nil
}

// uploadBatch is LFSBatch before an upload. The origin answers.
func (n *Node) uploadBatch(ctx context.Context, path git.RepoPath, session node.Session, b lfs.Batch) ([]lfs.Status,
	node.Outcome, error) {
	outcome := node.Outcome{Command: node.CommandLFSBatch, Mirror: node.MirrorRelay,
		LFS: node.LFSOutcome{Objects: uint32(len(b.Objects))}}
	server, ok, err := n.uploadServer(ctx, path, session)
	switch {
	case err != nil:
		return nil, outcome, err
	case !ok:
		return n.Node.LFSBatch(ctx, path, session, b)
	}
	start := time.Now()
	answers, err := server.Batch(ctx, b)
	outcome.OriginTime = time.Since(start)
	states := make([]lfs.Status, len(answers))
	for i, a := range answers {
		states[i] = a.Status
	}
	outcome.LFS.Refused, outcome.Reason = objects.Refusals(states)
	return states, outcome, err
}

// LFSUpload sends an object to the origin as it arrives. Interrupted uploads to a mirror do not continue.
func (n *Node) LFSUpload(ctx context.Context, path git.RepoPath, session node.Session, u lfs.Upload,
	content io.Reader) (size int64, outcome node.Outcome, err error) {
	outcome = node.Outcome{Command: node.CommandLFSUpload, Mirror: node.MirrorRelay,
		LFS: node.LFSOutcome{Objects: 1}}
	server, ok, err := n.uploadServer(ctx, path, session)
	switch {
	case err != nil:
		return 0, outcome, err
	case !ok:
		return n.Node.LFSUpload(ctx, path, session, u, content)
	}
	start := time.Now()
	err = uploadObject(ctx, server, u, content)
	outcome.OriginTime = time.Since(start)
	if err != nil {
		outcome.Reason = fault.KindOf(err).String()
		return 0, outcome, err
	}
	return u.Size, outcome, nil
}

// uploadObject sends an object to an origin.
func uploadObject(ctx context.Context, server origin.LFSRepository, u lfs.Upload, content io.Reader) error {
	if u.Offset != 0 {
		return fault.New(fault.Invalid, "an upload to a mirror cannot continue: begin again")
	}
	answers, err := server.Batch(ctx, lfs.Batch{Upload: true, Ref: u.Ref, Objects: []lfs.Object{u.Object}})
	switch {
	case err != nil:
		return err
	case answers[0].State == lfs.Refused:
		return answers[0].Err
	case answers[0].State == lfs.Present:
		return nil
	}
	body := &pushBody{r: content}
	err = server.Upload(ctx, &answers[0], u.Object, body)
	body.stop(err != nil)
	return err
}

// LFSPart returns 0 for a mirror, because uploads do not continue.
func (n *Node) LFSPart(ctx context.Context, path git.RepoPath, session node.Session, o lfs.Object) (int64, node.Outcome,
	error) {
	_, ok, err := n.uploadServer(ctx, path, session)
	if err == nil && !ok {
		return n.Node.LFSPart(ctx, path, session, o)
	}
	return 0, node.Outcome{Command: node.CommandLFSUpload, Mirror: node.MirrorRelay,
		LFS: node.LFSOutcome{Objects: 1}}, err
}

// LFSLocks passes a request about locks to the origin.
func (n *Node) LFSLocks(ctx context.Context, path git.RepoPath, session node.Session,
	q lfs.LockRequest) (lfs.LockAnswer,
	node.Outcome, error) {
	outcome := node.Outcome{Command: node.CommandLFSLocks, Mirror: node.MirrorRelay}
	server, ok, err := n.uploadServer(ctx, path, session)
	switch {
	case err != nil:
		return lfs.LockAnswer{}, outcome, err
	case !ok:
		return n.Node.LFSLocks(ctx, path, session, q)
	}
	start := time.Now()
	answer, err := server.Locks(ctx, q)
	outcome.OriginTime = time.Since(start)
	return answer, outcome, err
}
