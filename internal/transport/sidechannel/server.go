package sidechannel

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// Options configure a Server. Zero values mean the defaults.
type Options struct {
	Pump    *bulk.Pump
	Max     int           // channels at once; if there are several callers, each has at most three quarters of them
	Idle    time.Duration // how long a channel may be unused
	Stall   time.Duration // maximum time without progress of a peer: bytes received or sent, or an acknowledgment
	Wait    time.Duration // maximum time that a claim waits for the acknowledgement of the previous transfer
	Metrics *Metrics
	Log     *slog.Logger
}

// Server is a node's end of the channels. It is safe for concurrent use.
type Server struct {
	limits limits
	max    int
	wait   time.Duration
	watch  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	count  int            // lines, and requests that are about to be one
	counts map[string]int // of each caller
	// by the hash of their names: the duration of a look-up reveals nothing about a name
	lines map[[sha256.Size]byte]*line
}

// NewServer creates a Server.
func NewServer(o Options) *Server {
	return &Server{
		limits: limits{
			pump: o.Pump, idle: cmp.Or(o.Idle, defaultNodeIdle), stall: cmp.Or(o.Stall, defaultStall),
			metrics: o.Metrics, log: o.Log, buffers: &buffers{},
		},
		max: cmp.Or(o.Max, defaultMax), wait: cmp.Or(o.Wait, 10*time.Second),
		counts: map[string]int{}, lines: map[[sha256.Size]byte]*line{},
	}
}

// Upgrade answers a request for Path, and turns its connection into a channel of the authenticated caller. It does not
// wait for the end of the channel.
func (s *Server) Upgrade(w http.ResponseWriter, r *http.Request, caller string) {
	refuse := func(status int, format string, args ...any) {
		s.limits.metrics.opened.WithLabelValues("refused").Inc()
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close") // otherwise net/http waits for the body before it responds
		}
		http.Error(w, fmt.Sprintf(format, args...), status)
	}
	switch {
	case r.Method != http.MethodGet:
		w.Header().Set("Allow", http.MethodGet)
		refuse(http.StatusMethodNotAllowed, "side channels are opened with GET")
		return
	case r.ProtoMajor != 1 || r.ProtoMinor < 1 || !hasToken(r.Header, "Connection", "upgrade") ||
		!hasToken(r.Header, "Upgrade", protocol):
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", protocol)
		refuse(http.StatusUpgradeRequired, "side channels are opened over HTTP/1.1 with Upgrade: %s", protocol)
		return
	case r.ContentLength != 0:
		refuse(http.StatusBadRequest, "a request for a side channel has no body")
		return
	}
	if err := s.reserve(caller); err != nil {
		s.limits.metrics.opened.WithLabelValues("full").Inc()
		w.Header().Set("Retry-After", fault.RetryHeader(fault.RetryAfter(err)))
		http.Error(w, fault.Message(err), http.StatusServiceUnavailable)
		return
	}
	if err := s.open(w, caller, r.Header.Get(fileHeader) == fileVersion); err != nil {
		s.mu.Lock()
		s.leave(caller)
		s.mu.Unlock()
		s.limits.metrics.opened.WithLabelValues("failed").Inc()
		s.limits.log.Warn("cannot open a side channel", "caller", caller, "error", err)
	}
}

// reserve reserves a place for a channel of the caller.
func (s *Server) reserve(caller string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return fault.New(fault.Unavailable, "this node is about to end")
	case s.count >= s.max:
		return fault.New(fault.Exhausted, "this node has %d side channels, as many as it may have", s.max)
	case s.count > s.counts[caller] && s.counts[caller] >= max(1, s.max/4*3):
		return fault.New(fault.Exhausted, "this caller has %d of this node's %d side channels, and is not the only one",
			s.counts[caller], s.max)
	}
	s.count++
	s.counts[caller]++
	return nil
}

// leave returns a place. The caller holds s.mu.
func (s *Server) leave(caller string) {
	s.count--
	if s.counts[caller]--; s.counts[caller] == 0 {
		delete(s.counts, caller)
	}
}

// open takes the connection over. After an error there is no channel.
func (s *Server) open(w http.ResponseWriter, caller string, files bool) error {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "this connection cannot become a side channel", http.StatusInternalServerError)
		return err
	}
	head, _ := rw.Reader.Peek(rw.Reader.Buffered()) // bytes received with the request belong to the channel
	head = bytes.Clone(head)
	sock, err := newSocket(conn, &s.limits)
	if err != nil {
		conn.Close()
		return err
	}
	var random [nameLength / 2]byte
	_, _ = rand.Read(random[:]) // never fails
	name := hex.EncodeToString(random[:])
	l := newLine(sock, &s.limits, s, name)
	l.caller, l.head, l.opening = caller, head, true
	l.files = files && sock.kernel != nil && bulk.CanHand(sock.kernel)

	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		l.shut(closeShutdown, nil)
		return nil
	}
	s.lines[sha256.Sum256([]byte(name))] = l
	s.watch.Add(1)
	s.mu.Unlock()
	s.limits.metrics.opened.WithLabelValues("ok").Inc()

	// The peer may claim before this is done; the claim waits.
	answer := fmt.Sprintf("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n"+
		"%s: %s\r\n", protocol, nameHeader, name)
	limit := time.AfterFunc(handshakeLimit, func() {
		l.shut(closeStall,
			errors.New("the peer did not take the answer"))
	})
	err = errors.ErrUnsupported
	if l.files {
		err = l.prove(answer + fileHeader + ": " + fileVersion + "\r\n\r\n")
	}
	if errors.Is(err, errors.ErrUnsupported) {
		l.files = false
		err = l.write([]byte(answer+"\r\n"), s.limits.stall)
	}
	limit.Stop()
	l.mu.Lock()
	if l.opening = false; err != nil {
		l.close(closePeer, err)
	}
	l.notify()
	l.mu.Unlock()
	go func() {
		defer s.watch.Done()
		l.watch()
	}()
	return nil
}

// Claim returns the transfer that the caller has announced on a channel. It waits for the acknowledgement of the
// previous transfer. It fails with Invalid for an invalid name or a number that is not the next one. It fails with
// Denied for another caller's channel or a used number, and with Unavailable for a channel that is closed or stays
// busy.
func (s *Server) Claim(ctx context.Context, name string, transfer uint64, caller string) (*Channel, error) {
	refuse := func(why string, kind fault.Kind, text string) error {
		s.limits.metrics.refused.WithLabelValues(why).Inc()
		s.limits.log.Warn("claim of a side channel refused", "reason", why, "caller", caller, "transfer", transfer)
		return fault.New(kind, "%s", text)
	}
	if len(name) != nameLength {
		return nil, refuse("name", fault.Invalid, "invalid name of a side channel")
	}
	s.mu.Lock()
	l := s.lines[sha256.Sum256([]byte(name))]
	s.mu.Unlock()
	if l == nil || subtle.ConstantTimeCompare([]byte(l.name), []byte(name)) != 1 {
		return nil, refuse("unknown", fault.Unavailable, "there is no such side channel, or it is closed")
	}
	if subtle.ConstantTimeCompare([]byte(l.caller), []byte(caller)) != 1 {
		return nil, refuse("caller", fault.Denied, "this side channel was opened by another caller")
	}
	timeout := time.NewTimer(s.wait)
	defer timeout.Stop()
	for {
		l.mu.Lock()
		next, running, opening, changed := l.next, l.running != nil, l.opening, l.changed
		var c *Channel
		if !l.closed && !running && !opening && transfer == next {
			c = l.acquire()
		}
		closed := l.closed
		l.mu.Unlock()
		switch {
		case c != nil:
			return c, nil
		case closed:
			return nil, refuse("unknown", fault.Unavailable, "there is no such side channel, or it is closed")
		case transfer < next || transfer == next && running:
			return nil, refuse("replayed", fault.Denied, "this transfer has been claimed already")
		case opening && transfer == next:
		case transfer != next+1 || !running:
			return nil, refuse("number", fault.Invalid, "this is not the side channel's next transfer")
		}
		select {
		case <-changed:
		case <-timeout.C:
			return nil, refuse("busy", fault.Unavailable, "the side channel's transfer before this one has not ended")
		case <-ctx.Done():
			s.limits.metrics.refused.WithLabelValues("cancelled").Inc()
			return nil, ctx.Err()
		}
	}
}

// Close closes all channels, including those with a transfer, and waits for the goroutines that watch them. No new ones
// are opened.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	all := slices.Collect(maps.Values(s.lines))
	s.mu.Unlock()
	for _, l := range all {
		l.shut(closeShutdown, nil)
	}
	s.watch.Wait()
	return nil
}

// settled implements owner: it keeps the channel.
func (s *Server) settled(*line) bool { return true }

// gone implements owner.
func (s *Server) gone(l *line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave(l.caller)
	delete(s.lines, sha256.Sum256([]byte(l.name)))
}

// hasToken reports whether a header of comma-separated tokens has this one.
func hasToken(h http.Header, key, token string) bool {
	for _, v := range h.Values(key) {
		for t := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}
