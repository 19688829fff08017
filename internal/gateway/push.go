package gateway

import (
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/router"
)

const (
	typePushRequest = "application/x-git-receive-pack-request"
	typePushResult  = "application/x-git-receive-pack-result"
)

// pushHead is what a push's body may have beside its pack, in bytes: git itself refuses a pack that is too large, and says so.
const pushHead = 64 << 20

// receivePack takes a push. It is not taken twice: once a byte of it was read, no other node is asked, nor the same one again.
func (e *exchange) receivePack(path string) {
	if !e.method(http.MethodPost) || !e.repository(path) {
		return
	}
	e.op = opPush
	if !e.may(auth.Write) {
		return
	}
	if ct := e.r.Header.Get("Content-Type"); ct != typePushRequest {
		e.refuse(http.StatusUnsupportedMediaType, "bad content type; a git client sends "+typePushRequest)
		return
	}
	body, err := e.pushBody()
	if err != nil {
		e.fail(err)
		return
	}
	defer body.Close()
	seat, err := e.Lanes.Push.Enter(e.caller())
	if err != nil {
		e.fail(err)
		return
	}
	defer seat.Leave()
	e.w.Header().Set("Content-Type", typePushResult)
	e.reply = newReply(e, seat, body)
	session := e.session()
	session.Service = protocol.ReceivePack
	e.push = true
	e.relay(e.reply, func(n router.Node) (node.Outcome, error) {
		return n.ReceivePack(e.ctx, e.repo, session, e.pusher(), body, e.announce(e.reply))
	})
	e.finish()
}

// announce is the answer of a push: whoever remembers revisions is told before the client, who may ask for them as soon as it is.
func (c *call) announce(r node.ResponseWriter) node.ResponseWriter {
	if c.Changed == nil {
		return r
	}
	return &pushReply{r, func() { c.Changed(c.repo) }}
}

// pushReply is an answer that calls changed before each part of it.
type pushReply struct {
	node.ResponseWriter
	changed func()
}

// Write is a node.ResponseWriter's.
func (r *pushReply) Write(p []byte) (int, error) {
	r.changed()
	return r.ResponseWriter.Write(p)
}

// Flush is a node.ResponseWriter's.
func (r *pushReply) Flush() error {
	r.changed()
	return r.ResponseWriter.Flush()
}

// pusher is who pushes, as hooks and logs are told.
func (e *exchange) pusher() node.Pusher {
	return node.Pusher{Name: e.id.Name, Address: hostOf(e.r.RemoteAddr)}
}

// hostOf is an address without its port.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// pushBody is the body of a push: it streams, is never held, and may take long as a whole, as long as it comes.
func (e *exchange) pushBody() (*body, error) {
	limit := e.pushLimit()
	b := &body{}
	b.rest = &patient{r: e.r.Body, limit: http.NewResponseController(e.w).SetReadDeadline, stall: e.ReadStall, end: time.Now().Add(e.pushTime())}
	raw := io.Reader(b.rest)
	switch encoding := strings.ToLower(e.r.Header.Get("Content-Encoding")); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		b.gzip = gzipReaders.Get().(*gzip.Reader)
		if err := b.gzip.Reset(raw); err != nil {
			b.Close()
			return nil, fault.Wrap(fault.Invalid, "the request's body is no gzip stream", err)
		}
		raw = b.gzip
	default:
		return nil, fault.New(fault.Invalid, "unknown content encoding %.40q; gzip is understood", encoding)
	}
	b.unpacked = unpacked{r: raw, left: limit, limit: limit}
	return b, nil
}

// pushLimit bounds the bytes of a push.
func (c *call) pushLimit() int64 {
	if c.MaxPush > 0 && c.MaxPush < math.MaxInt64-pushHead {
		return c.MaxPush + pushHead
	}
	return math.MaxInt64 - 1 // unpacked.Read asks for one more
}

// pushTime bounds the time that a push's body may take.
func (c *call) pushTime() time.Duration {
	if c.PushTime > 0 {
		return c.PushTime
	}
	return 24 * time.Hour
}
