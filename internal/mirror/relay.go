package mirror

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

const (
	keepTime  = time.Minute // how long a complete response is kept for equal requests
	keepBytes = 1 << 30     // the maximum size of all these responses together
)

// relays passes requests of clients on to origins. Equal requests at the same time share one response, and a complete
// pack is kept for a while for later ones. It is safe for concurrent use.
type relays struct {
	spools *spools
	ctx    context.Context // ends at Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	byKey map[relayKey]*relay // running and kept
	bytes int64               // of the kept ones
}

// relayKey identifies equal requests. The zero key is for requests that are not shared.
type relayKey [sha256.Size]byte

// relay is one request to an origin, and its response.
type relay struct {
	*spool
	key    relayKey
	cancel context.CancelFunc

	// Guarded by relays.mu.
	followers int
	ended     bool
	expiry    *time.Timer // nil: not kept
}

func newRelays(s *spools) *relays {
	r := &relays{spools: s, byKey: make(map[relayKey]*relay)}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Close ends all requests and frees their responses.
func (r *relays) Close() {
	r.cancel()
	r.wg.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, y := range r.byKey {
		r.forgetLocked(y)
	}
}

// opener sends a request to an origin and returns the response.
type opener func(ctx context.Context) (io.ReadCloser, error)

// maxTries is how often a client's request is tried, if it followed requests that the origin refused for others.
const maxTries = 4

// send sends a client the origin's response to a request. The request runs while anybody follows it. If the origin
// refuses it, only the caller with whose credential it was sent gets the refusal.
func (r *relays) send(ctx context.Context, key relayKey, f form, open opener, response node.ResponseWriter,
	o followOptions) error {
	for try := 1; ; try++ {
		y, leads, err := r.join(key, f, open)
		if err != nil {
			return err
		}
		begun, err := y.send(ctx, response, o)
		r.leave(y)
		if err == nil || begun || leads || try == maxTries || !isOfCaller(err) {
			return err
		}
	}
}

// join returns the relay of a key, with the caller as a follower. leads reports whether it began for this caller.
func (r *relays) join(key relayKey, f form, open opener) (y *relay, leads bool, err error) {
	if y := r.find(key); y != nil {
		return y, false, nil
	}
	s, err := r.spools.create(f)
	if err != nil {
		return nil, false, fault.Wrap(fault.Unavailable, "the request to the origin could not be relayed", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if y := r.findLocked(key); y != nil { // another caller was faster
		s.release()
		return y, false, nil
	}
	if r.ctx.Err() != nil {
		s.release()
		return nil, false, fault.Retry(fault.Unavailable, fault.RetrySoon, "the server is shutting down")
	}
	y = &relay{spool: s, key: key, followers: 1}
	s.acquire()
	if key != (relayKey{}) {
		r.byKey[key] = y
	}
	ctx, cancel := context.WithCancel(r.ctx)
	y.cancel = cancel
	r.wg.Go(func() { r.run(ctx, y, open) })
	return y, true, nil
}

func (r *relays) find(key relayKey) *relay {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.findLocked(key)
}

func (r *relays) findLocked(key relayKey) *relay {
	y := r.byKey[key]
	if y == nil || y.isOver() { // run is about to remove it
		return nil
	}
	y.followers++
	y.acquire()
	return y
}

// leave removes a follower. A request without followers ends.
func (r *relays) leave(y *relay) {
	r.mu.Lock()
	y.followers--
	if y.followers == 0 && !y.ended {
		y.cancel()
		r.removeLocked(y) // later callers begin another one
	}
	r.mu.Unlock()
	y.release()
}

// run sends a request to the origin and stores the response.
func (r *relays) run(ctx context.Context, y *relay, open opener) {
	defer y.cancel()
	body, err := open(ctx)
	if err == nil {
		_, err = io.Copy(y.spool, body)
		err = errors.Join(err, body.Close())
	}
	y.end(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	y.ended = true
	if y.isShareable() && r.byKey[y.key] == y {
		r.keepLocked(y)
	} else {
		r.removeLocked(y)
	}
	y.release()
}

// keepLocked keeps a complete response for later requests, if there is room. The caller holds the lock.
func (r *relays) keepLocked(y *relay) {
	size := y.size()
	if r.bytes+size > keepBytes {
		r.removeLocked(y)
		return
	}
	y.acquire()
	r.bytes += size
	y.expiry = time.AfterFunc(keepTime, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.forgetLocked(y)
	})
}

// forgetLocked frees a kept response. The caller holds the lock.
func (r *relays) forgetLocked(y *relay) {
	if y.expiry == nil {
		return
	}
	y.expiry.Stop()
	y.expiry = nil
	r.bytes -= y.size()
	r.removeLocked(y)
	y.release()
}

// removeLocked lets later requests begin a new relay. The caller holds the lock.
func (r *relays) removeLocked(y *relay) {
	if r.byKey[y.key] == y {
		delete(r.byKey, y.key)
	}
}

// relayedRequest is a client's request to git-upload-pack in the form in which it is sent to the origin.
type relayedRequest struct {
	body []byte
	key  relayKey
	form form
}

// newRelayedRequest prepares a request for a repository. Requests that differ only in the client's agent and
// session ID have the same key. An origin may not know session IDs, so they are not sent.
func newRelayedRequest(repository string, version protocol.Version, body []byte) relayedRequest {
	q := relayedRequest{body: body, form: formPackets}
	hash := sha256.New()
	for _, part := range []string{repository, version.String()} {
		hash.Write(append([]byte(part), 0))
	}
	if version == protocol.V2 {
		sent, same := splitCapabilities(body)
		q.body = sent
		hash.Write(same)
	} else {
		if !bytes.Contains(firstLine(body), []byte("side-band")) {
			q.form = formBytes
		} else {
			q.form = formLines
		}
		hash.Write(withoutAgent(body))
	}
	q.key = relayKey(hash.Sum(nil))
	return q
}

// splitCapabilities returns a request of version 2 without its session ID, and the same without the agent.
func splitCapabilities(body []byte) (sent, same []byte) {
	rest := body
	for {
		n, err := pktline.ParseLength(rest)
		if err != nil || n < 4 || n > len(rest) { // the delimiter, or not a request
			return append(sent, rest...), append(same, rest...)
		}
		line, payload := rest[:n], rest[4:n]
		rest = rest[n:]
		if bytes.HasPrefix(payload, []byte("session-id=")) {
			continue
		}
		sent = append(sent, line...)
		if !bytes.HasPrefix(payload, []byte("agent=")) {
			same = append(same, line...)
		}
	}
}

// firstLine returns the first line of a request of version 0 or 1, which has the capabilities of the client.
func firstLine(body []byte) []byte {
	n, err := pktline.ParseLength(body)
	if err != nil || n > len(body) {
		return nil
	}
	return body[:n]
}

// withoutAgent returns a request of version 0 or 1 without the agent and the session ID of the client, for comparison.
func withoutAgent(body []byte) []byte {
	first := firstLine(body)
	same := make([]byte, 0, len(body))
	for i, word := range bytes.Split(first[min(4, len(first)):], []byte(" ")) {
		if i > 0 && (bytes.HasPrefix(word, []byte("agent=")) || bytes.HasPrefix(word, []byte("session-id="))) {
			continue
		}
		same = append(append(same, word...), ' ')
	}
	return append(same, body[len(first):]...)
}
