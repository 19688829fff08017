package mirror

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
)

// originRefs returns the refs of the origin while the repository does not have them: during the first update, or during
// one that takes long. It is nil if the repository is up to date.
func (x *exchange) originRefs(ctx context.Context) (*origin.Refs, error) {
	start := time.Now()
	defer func() { x.originTime += time.Since(start) }()
	r, since := x.mirror, x.mirror.window(x.mirrors.now())
	for {
		c, own := r.join(since, x.session.Authorization, false)
		if err := x.mirrors.awaitOrigin(ctx, r.currentRule().Origin, c.done); err != nil {
			return nil, err
		}
		if !own && c.isOutdated(since) {
			continue
		}
		if c.err != nil {
			_, err := r.judge(c.err)
			return nil, err
		}
		refs, isKnown := r.pendingRefs(c)
		if !isKnown { // this caller was slow
			since = r.m.now()
			continue
		}
		return refs, nil
	}
}

// pendingRefs returns the refs that a check found, as long as the repository does not have them. isKnown is false if
// they are forgotten.
func (r *mirror) pendingRefs(c *originCheck) (refs *origin.Refs, isKnown bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case c.update != nil && c.update.refs != nil:
		return c.update.refs, true
	case !r.state.Complete: // the update has failed; clients can do without it
		return c.refs, c.refs != nil
	}
	return nil, true
}

// originFeatures returns the protocol version and the features of the origin as the last check found them.
func (r *mirror) originFeatures() (protocol.Version, protocol.Offer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.version, r.offer
}

// outage returns the age of the repository's state, and the reason, if the origin did not answer recently.
func (r *mirror) outage() (time.Duration, error) {
	const recently = time.Minute
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.m.now()
	if r.down == nil || now.Sub(r.downAt) > recently {
		return 0, nil
	}
	return max(now.Sub(r.state.Fresh), time.Nanosecond), r.down
}

// lsRefs answers the command ls-refs: from the repository if it is up to date, else with the refs of the origin.
func (x *exchange) lsRefs(ctx context.Context, body []byte) error {
	if x.rule.OriginDecides && x.namesOthers(body) {
		if refs, err := x.askOthers(ctx, body); err == nil {
			return x.listRefs(body, refs, func(name git.RefName) bool {
				return x.rule.mirrors(name) || isChangeRequest(name)
			})
		}
	}
	if x.mirror.complete() {
		err := x.check(ctx, false)
		if err == nil {
			return x.serve(ctx, bytes.NewReader(body))
		}
		if err != errUpdating {
			return err
		}
	}
	refs, err := x.originRefs(ctx)
	if err != nil {
		return err
	}
	if refs == nil { // the update has just ended
		return x.serve(ctx, bytes.NewReader(body))
	}
	return x.listRefs(body, refs, x.rule.mirrors)
}

// askOthers asks the origin for the refs that a client names, with the credential of the caller.
func (x *exchange) askOthers(ctx context.Context, body []byte) (*origin.Refs, error) {
	request, err := protocol.ReadRequest(pktline.NewReader(bytes.NewReader(body)), formatOf(body), allFeatures,
		protocol.Limits{})
	if err != nil {
		return nil, err
	}
	return x.listOthers(ctx, x.credential(), request.LsRefs.Prefixes)
}

// otherList is a list of refs that are not mirrored.
type otherList struct {
	refs *origin.Refs
	at   time.Time // when the origin was asked
}

// listOthers is Rule.listPrefixes for refs that are not mirrored. Equal requests share one that began within the window
// of the rule. It gives up if the origin answers nothing.
func (x *exchange) listOthers(ctx context.Context, auth node.Secret, prefixes []string) (*origin.Refs, error) {
	start := time.Now()
	defer func() { x.originTime += time.Since(start) }()
	m, rule, path, since := x.mirrors, x.rule, x.mirror.originPath(), x.mirror.window(x.mirrors.now())
	key := strings.Join(append([]string{rule.URL.String(), path, auth.Reveal()}, prefixes...), "\n")
	for {
		var result any
		var err error
		done := make(chan struct{})
		m.running.Go(func() {
			defer close(done)
			result, err, _ = m.others.Do(key, func() (any, error) {
				ctx, cancel := context.WithTimeout(origin.WithCaller(m.ctx, origin.CallerOf(ctx)), checkTimeout)
				defer cancel()
				l := otherList{at: m.now()}
				var err error
				l.refs, err = rule.listPrefixes(ctx, path, auth, prefixes)
				return l, err
			})
		})
		if err := m.awaitOrigin(ctx, rule.Origin, done); err != nil {
			return nil, err
		}
		if l := result.(otherList); err != nil || !l.at.Before(since) {
			return l.refs, err
		}
	}
}

// requestRefs are the prefixes of refs in which Git hosts keep change requests.
var requestRefs = []string{"refs/pull/", "refs/merge-requests/", "refs/pull-requests/", "refs/changes/"}

func isChangeRequest(name git.RefName) bool {
	return slices.ContainsFunc(requestRefs, func(prefix string) bool { return strings.HasPrefix(string(name), prefix) })
}

// namesOthers reports whether a client asks for refs of change requests that are not mirrored.
func (x *exchange) namesOthers(body []byte) bool {
	return slices.ContainsFunc(requestRefs, func(prefix string) bool {
		return bytes.Contains(body, []byte("ref-prefix "+prefix)) &&
			!slices.ContainsFunc(x.rule.prefixes(), func(mirrored string) bool {
				return strings.HasPrefix(prefix, mirrored) || strings.HasPrefix(mirrored, prefix)
			})
	})
}

// allFeatures are the features of requests that may come before the mirror is complete.
var allFeatures = protocol.Offer{Filter: true, RefInWant: true, SidebandAll: true, Unborn: true, Session: true,
	ObjectInfo: true, BundleURI: true}

// listRefs answers the command ls-refs with those refs of the origin that the caller may see.
func (x *exchange) listRefs(body []byte, refs *origin.Refs, shows func(git.RefName) bool) error {
	request, err := protocol.ReadRequest(pktline.NewReader(bytes.NewReader(body)), format(refs), allFeatures,
		protocol.Limits{})
	if err != nil {
		return err
	}
	x.outcome = node.Outcome{Command: protocol.CommandLsRefs, Agent: request.Agent, Session: request.SessionID,
		Mirror: node.MirrorRelay}
	q := request.LsRefs
	return x.sendRefs(refs, shows, nil, nil, func(b []byte, ref protocol.RefLine) []byte {
		if len(q.Prefixes) > 0 && !slices.ContainsFunc(q.Prefixes, func(prefix string) bool {
			return strings.HasPrefix(string(ref.Name), prefix)
		}) {
			return b
		}
		if ref.ID.IsZero() && (ref.Target == "" || !q.Unborn || !q.Symrefs) {
			return b
		}
		if !q.Symrefs {
			ref.Target = ""
		}
		if !q.Peel {
			ref.Peeled = git.ObjectID{}
		}
		return protocol.AppendRef(b, ref)
	})
}

// advertiseRefs sends the refs of the origin in version 0 or 1. It offers what all servers have, because the origin may
// get the requests.
func (x *exchange) advertiseRefs(refs *origin.Refs) error {
	x.outcome = node.Outcome{Mirror: node.MirrorRelay}
	features := protocol.Features{Agent: "packhorse", Format: format(refs), Filter: refs.Offer.Filter}
	var begin []byte
	if x.session.Version == protocol.V1 {
		begin = pktline.AppendLine(nil, "version 1")
	}
	var none []byte
	if features.Format != git.SHA1 { // as uploadpack
		none = protocol.AppendNoRefs(nil, features.Format, features.String())
	}
	return x.sendRefs(refs, x.rule.mirrors, begin, none, func(b []byte, ref protocol.RefLine) []byte {
		if ref.ID.IsZero() { // an unborn HEAD
			return b
		}
		if x.outcome.Refs > 0 {
			return protocol.AppendAdvertised(b, ref, "")
		}
		features.Head = ref.Target
		return protocol.AppendAdvertised(b, ref, features.String())
	})
}

// maxRefBuffer is the number of bytes of refs that are sent at once.
const maxRefBuffer = 64 << 10

// sendRefs sends those refs of the origin that the caller may see: a short list with its length, a long one in pieces.
// The response starts with begin, and has none in place of refs. add appends a ref to b, unless the client does not
// want it.
func (x *exchange) sendRefs(refs *origin.Refs, shows func(git.RefName) bool, begin, none []byte,
	add func(b []byte, ref protocol.RefLine) []byte) error {
	list, err := refs.List()
	if err != nil {
		return err
	}
	buf := begin
	put := func(ref protocol.RefLine) error {
		before := len(buf)
		if buf = add(buf, ref); len(buf) > before {
			x.outcome.Refs++
		}
		if len(buf) < maxRefBuffer {
			return nil
		}
		if err := x.startBulk(); err != nil {
			return err
		}
		_, err := x.response.Write(buf)
		buf = buf[:0]
		return err
	}
	if x.rule.mirrorsHead(list) {
		if err := put(protocol.RefLine{Name: git.HEAD, ID: list.HeadID, Target: list.Head}); err != nil {
			return err
		}
	}
	for _, ref := range list.Refs {
		if shows(ref.Name) {
			if err := put(protocol.RefLine{Name: ref.Name, ID: ref.ID, Peeled: ref.Peeled}); err != nil {
				return err
			}
		}
	}
	if x.outcome.Refs == 0 {
		buf = append(buf, none...)
	}
	buf = pktline.AppendFlush(buf)
	if !x.isBulk {
		x.response.SetLength(int64(len(buf)))
	}
	_, err = x.response.Write(buf)
	return err
}

// follow answers a clone of everything from the pack of the first update while it arrives. done is false if another
// answer is needed.
func (x *exchange) follow(ctx context.Context, body []byte) (done bool, err error) {
	request, prefix := x.readClone(body)
	if request == nil {
		return false, nil
	}
	h := x.mirror.hydrated(ctx)
	if h == nil {
		return false, ctx.Err()
	}
	defer h.release()
	if !h.covers(request) {
		return false, nil
	}
	if err := x.startBulk(); err != nil {
		return true, err
	}
	x.mirror.changeDemand(func(d *demand) { d.followed = true })
	o := x.following(request.NoProgress, true)
	o.prefix, o.skip = prefix, int64(len(packfileLine))
	begun, err := h.send(ctx, x.response, o)
	if err != nil && !begun && ctx.Err() == nil {
		return false, nil
	}
	x.outcome = node.Outcome{Command: protocol.CommandFetch, Mirror: node.MirrorFollow,
		Fetch: node.FetchOutcome{Wants: len(request.Wants)}}
	return true, err
}

// readClone parses the request of a clone without a boundary, and returns the packets that begin its response. The
// request is nil if it is another one, or if the client does not know side-bands.
func (x *exchange) readClone(body []byte) (request *protocol.Fetch, prefix []byte) {
	packets, limits := pktline.NewReader(bytes.NewReader(body)), protocol.Limits{}
	format := formatOf(body)
	if x.session.Version == protocol.V2 {
		q, err := protocol.ReadRequest(packets, format, allFeatures, limits)
		if err != nil || q == nil || q.Fetch == nil || !q.Fetch.Done {
			return nil, nil
		}
		return q.Fetch, prefixFor(protocol.V2, q.Fetch.SidebandAll)
	}
	needs, err := protocol.ReadNeeds(packets, format, allFeatures, limits)
	if err != nil || needs.Sideband != protocol.Sideband64k {
		return nil, nil
	}
	if turn, _, err := protocol.NewHaveReader(packets, format, limits).Next(); err != nil || turn != protocol.TurnDone {
		return nil, nil
	}
	return &needs.Fetch, prefixFor(x.session.Version, false)
}

// following returns how the client gets a spool. isUpdate reports whether that has the pack of the first update.
func (x *exchange) following(quiet, isUpdate bool) followOptions {
	if quiet {
		return followOptions{}
	}
	return followOptions{every: time.Second, note: func(arrived int64) string {
		progress := fmt.Sprintf("%d MiB", arrived>>20)
		if isUpdate {
			progress = cmp.Or(x.mirror.progress(), progress)
		}
		return "mirroring from " + x.rule.Origin.Host() + ": " + progress
	}}
}

// hydrationWait is how long a clone waits for the begin of the first update. Updates of other mirrors may be running.
const hydrationWait = 5 * time.Second

// hydrated returns the pack of the first update once it arrives. The caller releases it. It is nil if there is none,
// for example because the update waits for others.
func (r *mirror) hydrated(ctx context.Context) *hydration {
	r.mu.Lock()
	u := r.running
	r.mu.Unlock()
	if u == nil || !u.first {
		return nil
	}
	timeout := time.NewTimer(hydrationWait)
	defer timeout.Stop()
	select {
	case <-u.fetching:
	case <-u.done:
	case <-timeout.C:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hydration != nil {
		r.hydration.acquire()
	}
	return r.hydration
}

// demand describes the requests of clients to a mirror that is not complete.
type demand struct {
	fetches  int           // so far
	relays   int           // running
	followed bool          // a client follows the first update
	changed  chan struct{} // has a token after a change; nil: not observed
}

// changeDemand changes the demand.
func (r *mirror) changeDemand(change func(d *demand)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.demand)
	select {
	case r.demand.changed <- struct{}{}:
	default:
	}
}

const (
	// firstFetchWait is how long the first update waits for a fetch, such as that of the client that caused it.
	firstFetchWait = 200 * time.Millisecond
	// maxYield is how long the first update lets requests of clients have the link to the origin.
	maxYield = 30 * time.Second
)

// yield delays the first update while the origin answers requests of clients that need less than everything, because it
// would take half of the bandwidth. It does not delay an update that clients follow.
func (r *mirror) yield(ctx context.Context) {
	changed := make(chan struct{}, 1)
	r.mu.Lock()
	r.demand.changed = changed
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, maxYield)
	defer cancel()
	expected, stop := context.WithTimeout(ctx, firstFetchWait)
	defer stop()
	for {
		r.mu.Lock()
		d := r.demand
		r.mu.Unlock()
		wait := ctx
		switch {
		case d.followed, d.fetches > 0 && d.relays == 0:
			return
		case d.fetches == 0:
			wait = expected
		}
		select {
		case <-changed:
		case <-wait.Done():
			return
		}
	}
}

// hydrate asks the origin for the pack of the first update, which clients may follow.
func (r *mirror) hydrate(u *update, wants []git.ObjectID, fetch func() (io.ReadCloser, error)) (io.ReadCloser, error) {
	h, err := r.m.spools.newHydration(wants, r.branches(u))
	if err != nil { // clients have to wait
		r.m.log.Warn("cannot share the pack of a first update", "repository", r.path.String(), "error", err)
		u.begin()
		return fetch()
	}
	r.mu.Lock()
	old := r.hydration
	r.hydration = h
	r.mu.Unlock()
	if old != nil {
		old.release()
	}
	u.begin()
	r.yield(u.ctx)
	pack, err := fetch()
	if err != nil {
		h.end(err)
		return nil, err
	}
	return h.tee(pack), nil
}

// branches returns the commits of the branches in the state that an update is to reach.
func (r *mirror) branches(u *update) (ids []git.ObjectID) {
	list, err := u.refs.List()
	if err != nil {
		return nil
	}
	rule := r.currentRule()
	for _, ref := range list.Refs {
		if strings.HasPrefix(string(ref.Name), "refs/heads/") && rule.mirrors(ref.Name) {
			ids = append(ids, ref.ID)
		}
	}
	return ids
}

// awaitUpdate waits until no update runs. The error is errUpdating's reason if the mirror is still not complete.
func (x *exchange) awaitUpdate(ctx context.Context) error {
	start := time.Now()
	defer func() { x.originTime += time.Since(start) }()
	r := x.mirror
	for {
		r.mu.Lock()
		u, isComplete := r.running, r.state.Complete
		r.mu.Unlock()
		if u == nil && isComplete {
			return nil
		}
		if u == nil { // the first update has failed: try again, or get the reason
			if err := x.check(ctx, false); err != nil && err != errUpdating {
				return err
			}
			continue
		}
		select {
		case <-u.done:
		case <-ctx.Done():
			return fault.Wrap(fault.KindOf(ctx.Err()), fault.Message(errUpdating), ctx.Err())
		}
	}
}
