package bucket

import (
	"bytes"
	"context"
	"encoding/xml"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

// stallTimeout ends a connection on which no byte moves in either direction. It includes the time until an answer
// begins, which is long for the last request of an upload in parts.
const stallTimeout = 60 * time.Second

// transport sends requests, counts them, and notes what answers tell about the connection.
type transport struct {
	*httpguard.Transport
	metrics *Metrics
	stall   time.Duration // stallTimeout

	skew  atomic.Int64           // nanoseconds
	proxy atomic.Pointer[string] // the header of the last proxy
}

func newTransport(m *Metrics) *transport {
	t := &transport{metrics: m, stall: stallTimeout}
	t.Transport = httpguard.NewTransport(&http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         t.dial,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     stallTimeout,
		DisableCompression:  true,
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      64 << 10,
	})
	return t
}

func (t *transport) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
	c, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &stallConn{c, t.stall}, nil
}

// stallConn fails when no byte moves in either direction for a while. It is a syscall.Conn for package httpguard, which
// looks for unread bytes.
type stallConn struct {
	net.Conn
	stall time.Duration
}

func (c *stallConn) Read(p []byte) (int, error) {
	_ = c.SetDeadline(time.Now().Add(c.stall))
	return c.Conn.Read(p)
}

// SyscallConn implements syscall.Conn.
func (c *stallConn) SyscallConn() (syscall.RawConn, error) {
	return c.Conn.(syscall.Conn).SyscallConn()
}

func (c *stallConn) Write(p []byte) (int, error) {
	_ = c.SetDeadline(time.Now().Add(c.stall))
	return c.Conn.Write(p)
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	begin := time.Now()
	answer, err := t.send(r)
	if t.metrics != nil {
		t.count(r, answer, time.Since(begin))
	}
	if err != nil || !isSigned(r) {
		return answer, err
	}
	t.note(answer.Header)
	if answer.StatusCode == http.StatusNotFound && !isOfStorage(answer) {
		_ = answer.Body.Close()
		return nil, foreignError(r.URL.Host)
	}
	return answer, nil
}

// send sends a request. After a redirect http.Client closes the body, and http.Transport may do so at the same time.
// That of the client library is not safe for this, so send waits for the latter.
func (t *transport) send(r *http.Request) (*http.Response, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return t.Transport.RoundTrip(r)
	}
	sending, end := context.WithCancel(r.Context())
	r = r.WithContext(r.Context())
	r.Body = sentBody{r.Body, end}
	answer, err := t.Transport.RoundTrip(r)
	if err == nil && answer.StatusCode/100 == 3 {
		<-sending.Done()
	}
	return answer, err
}

// sentBody is a body that reports that it is closed.
type sentBody struct {
	io.ReadCloser
	end context.CancelFunc
}

func (b sentBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// maxErrorBody is the maximum size of an error document in bytes.
const maxErrorBody = 64 << 10

// isOfStorage reports whether an answer 404 is the storage's, and not that of a proxy that has lost the way to it. A
// proxy's must not mean that an object does not exist: new records would be overlooked. The client library takes any
// 404 that it cannot parse for that.
func isOfStorage(answer *http.Response) bool {
	if answer.Header.Get("X-Amz-Request-Id") != "" {
		return true
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxErrorBody))
	var document struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
	}
	if err != nil || xml.Unmarshal(body, &document) != nil || document.Code == "" {
		return false
	}
	_ = answer.Body.Close()
	answer.Body = io.NopCloser(bytes.NewReader(body))
	return true
}

// foreignError is a 404 of another server than the storage. Its value is the host.
type foreignError string

func (e foreignError) Error() string {
	return string(e) + " answered 404, but not as object storage does (without x-amz-request-id and an error in XML)"
}

// isSigned reports whether a request goes to the storage, and not to a source of credentials.
func isSigned(r *http.Request) bool { return r.Header.Get("X-Amz-Content-Sha256") != "" }

func (t *transport) count(r *http.Request, answer *http.Response, took time.Duration) {
	operation, code := operation(r), "error"
	t.metrics.seconds.WithLabelValues(operation).Observe(took.Seconds())
	if answer != nil {
		code = strconv.Itoa(answer.StatusCode)
		answer.Body = &countedBody{answer.Body, t.metrics.received}
		t.metrics.sent.Add(float64(max(r.ContentLength, 0)))
	}
	t.metrics.requests.WithLabelValues(operation, code).Inc()
}

// operation names a request in metrics.
func operation(r *http.Request) string {
	query := r.URL.Query()
	switch {
	case !isSigned(r):
		return "other"
	case r.Method == http.MethodPut && r.Header.Get("If-None-Match") != "":
		return "create"
	case r.Header.Get("X-Amz-Copy-Source") != "":
		return "copy"
	case r.Method == http.MethodPut, query.Has("uploads"), query.Has("uploadId"):
		return "put"
	case query.Has("list-type"):
		return "list"
	case r.Method == http.MethodGet && r.Header.Get("Range") != "":
		return "range"
	case r.Method == http.MethodGet && !query.Has("location"):
		return "get"
	case r.Method == http.MethodDelete:
		return "delete"
	}
	return "other"
}

type countedBody struct {
	io.ReadCloser
	received prometheus.Counter
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.received.Add(float64(n))
	return n, err
}

// note reads the clock of the storage and signs of proxies. Age and Via are of RFC 9110 and 9111; the others are of
// common caches that leave those out.
func (t *transport) note(h http.Header) {
	if at, err := http.ParseTime(h.Get("Date")); err == nil {
		t.skew.Store(int64(time.Until(at)))
	}
	for _, name := range []string{"Age", "Via", "X-Varnish", "X-Cache"} {
		if value := h.Get(name); value != "" {
			text := name + ": " + value
			t.proxy.Store(&text)
		}
	}
}

func (t *transport) connection() Connection {
	c := Connection{ClockSkew: time.Duration(t.skew.Load())}
	if proxy := t.proxy.Load(); proxy != nil {
		c.Proxy = *proxy
	}
	if c.ClockSkew.Abs() < 2*time.Second { // Date has full seconds
		c.ClockSkew = 0
	}
	return c
}
