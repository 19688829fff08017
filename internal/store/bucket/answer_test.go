package bucket_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

// scripted returns a bucket on a server with this handler.
func scripted(t testing.TB, handler http.HandlerFunc) (*bucket.S3, bucket.Options) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "credentials")
	writeCredentials(t, file, "key")
	o := bucket.Options{
		URL: "s3://git-prod/packhorse", Endpoint: server.URL, CredentialsFile: file,
	}
	return buckettest.Open(t, o), o
}

func writeCredentials(t testing.TB, file, key string) {
	t.Helper()
	text := "# aws_access_key_id = none\n[default]\r\naws_access_key_id = " + key + "\naws_secret_access_key = a=b\n\n" +
		"region = x\n[ci]\naws_access_key_id=ci\naws_secret_access_key=secret\naws_session_token=token\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// answerError answers as S3 does.
func answerError(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code><Message>text of %s</Message><RequestId>R1</RequestId></Error>", code,
		code)
}

// Each error names operation, key and remedy for the log, and neither bucket nor key for clients.
func TestErrors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status     int
		code       string
		get        string // part of the error of Get
		getKind    fault.Kind
		create     string // part of the error of Create
		createKind fault.Kind
	}{
		{404, "NoSuchKey", "does not exist", fault.NotFound, "does not exist", fault.NotFound},
		{404, "NoSuchBucket", "create the bucket", fault.Unavailable, "create the bucket", fault.Unavailable},
		{404, "XAdminUserNotFound", "check the URL", fault.Unavailable, "the credentials of the store", fault.Unavailable},
		{403, "AccessDenied", "grant s3:GetObject on the objects and s3:ListBucket", fault.Unavailable,
			"grant s3:PutObject", fault.Unavailable},
		{403, "InvalidAccessKeyId", "check the credentials", fault.Unavailable, "check the credentials", fault.Unavailable},
		{403, "RequestTimeTooSkewed", "clock of this machine is 20m0s ahead of", fault.Unavailable,
			"within 15 minutes", fault.Unavailable},
		{503, "SlowDown", "throttles", fault.Unavailable, "throttles", fault.Unavailable},
		{500, "InternalError", "(500 InternalError), request R1", fault.Unavailable, "text of InternalError",
			fault.Unavailable},
		{301, "PermanentRedirect", "region", fault.Unavailable, `"eu-north-1"`, fault.Unavailable},
		{400, "AuthorizationHeaderMalformed", `region of the store to "eu-north-1"`, fault.Unavailable, "region",
			fault.Unavailable},
		{412, "PreconditionFailed", "exists", fault.Exists, "exists already", fault.Exists},
		{409, "ConditionalRequestConflict", "409", fault.Unavailable, "409", fault.Unavailable},
		{501, "NotImplemented", "501", fault.Unavailable, "does not support conditional writes", fault.Unavailable},
	} {
		var requests atomic.Int32
		b, _ := scripted(t, func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			w.Header().Set("Date", time.Now().Add(-20*time.Minute).UTC().Format(http.TimeFormat))
			w.Header().Set("x-amz-bucket-region", "eu-north-1")
			answerError(w, test.status, test.code)
		})
		_, _, err := b.Get(t.Context(), "repos/1/log/2", 10)
		checkError(t, test.code, err, test.getKind, "get s3://git-prod/packhorse/repos/1/log/2: ", test.get)
		if got, want := errors.Is(err, bucket.ErrDenied), test.code == "AccessDenied" ||
			test.code == "InvalidAccessKeyId"; got != want {
			t.Errorf("%s: errors.Is(%v, ErrDenied) = %v, want %v", test.code, err, got, want)
		}
		requests.Store(0)
		err = b.Create(t.Context(), "repos/1/log/2", []byte("x"))
		checkError(t, test.code, err, test.createKind, "create s3://git-prod/packhorse/repos/1/log/2: ", test.create)
		if requests.Load() != 1 {
			t.Errorf("%s: Create made %d requests, want 1", test.code, requests.Load())
		}
	}
}

// Amazon S3 answers a copy with the status 200 before it has made it. The error can follow.
func TestCopyFailsAfterStatus(t *testing.T) {
	t.Parallel()
	b, _ := scripted(t, func(w http.ResponseWriter, _ *http.Request) { answerError(w, http.StatusOK, "InternalError") })
	err := b.Copy(t.Context(), "a", "b", 1)
	checkError(t, "copy", err, fault.Unavailable, "copy s3://git-prod/packhorse/a: ", "status 200 and an error")
}

// A request over TLS to a server without TLS names the remedy.
func TestServerWithoutTLS(t *testing.T) {
	t.Parallel()
	_, o := scripted(t, func(http.ResponseWriter, *http.Request) {})
	o.Endpoint = strings.Replace(o.Endpoint, "http:", "https:", 1)
	_, _, err := buckettest.Open(t, o).Get(t.Context(), "x", 10)
	checkError(t, "https", err, fault.Unavailable, "cannot be used", "use http:// in the endpoint")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			_, _ = c.Read(make([]byte, 4096)) // or the connection would be reset
			_, _ = c.Write([]byte("hello"))
			c.Close()
		}
	}()
	o.Endpoint = "https://" + l.Addr().String()
	_, _, err = buckettest.Open(t, o).Get(t.Context(), "x", 10)
	checkError(t, "another protocol", err, fault.Unavailable, "cannot be used", "use http:// in the endpoint")
}

func checkError(t *testing.T, name string, err error, kind fault.Kind, parts ...string) {
	t.Helper()
	if fault.KindOf(err) != kind {
		t.Errorf("%s: %v has kind %v, want %v", name, err, fault.KindOf(err), kind)
	}
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: error = %v, want one with %q", name, err, part)
		}
	}
	if message := fault.Message(err); strings.Contains(message, "git-prod") || strings.Contains(message, "repos/1") {
		t.Errorf("%s: message for clients = %q, want one without bucket and key", name, message)
	}
	if kind == fault.Unavailable && fault.RetryAfter(err) == 0 {
		t.Errorf("%s: %v has no retry hint", name, err)
	}
}

// A body that is cut is read again. A storage that ignores ranges is an error.
func TestBodies(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	_, o := scripted(t, func(w http.ResponseWriter, r *http.Request) {
		n := requests.Add(1)
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		switch {
		case strings.HasSuffix(r.URL.Path, "/cut"), strings.HasSuffix(r.URL.Path, "/once") && n == 1:
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "12345")
		default:
			_, _ = io.WriteString(w, "1234567890")
		}
	})
	registry := prometheus.NewRegistry()
	o.Metrics = bucket.NewMetrics(registry)
	b := buckettest.Open(t, o)
	if got, _, err := b.Get(t.Context(), "once", 10); string(got) != "1234567890" || err != nil || requests.Load() != 2 {
		t.Errorf("Get = %q, %v with %d requests, want the whole body with 2", got, err, requests.Load())
	}
	_, _, err := b.Get(t.Context(), "cut", 10)
	checkError(t, "cut", err, fault.Unavailable, "get s3://git-prod/packhorse/cut: ", "cut")
	r, _, err := b.Open(t.Context(), "cut", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.ReadAll(r)
	_ = r.Close()
	checkError(t, "cut", err, fault.Unavailable, "open s3://git-prod/packhorse/cut: ", "cut")
	_, _, err = b.Open(t.Context(), "whole", 2, 3)
	checkError(t, "range", err, fault.Corrupt, "open s3://git-prod/packhorse/whole: ", "Content-Range")

	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if got := counters(families); got["get 200"] != 6 || got["range 200"] != 1 || got["received"] < 35 {
		t.Errorf("metrics = %v, want 6 get 200, 1 range 200, and bytes", got)
	}
}

// counters returns counters by their labels.
func counters(families []*dto.MetricFamily) map[string]float64 {
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetCounter() == nil {
				continue
			}
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			name := strings.TrimSpace(labels["operation"] + " " + labels["code"] + labels["direction"])
			values[name] = m.GetCounter().GetValue()
		}
	}
	return values
}

// A server that accepts a request and never answers does not keep its caller for longer than the stall timeout.
func TestStalledServer(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	b, _ := scripted(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	})
	defer close(stop)
	b.SetStallTimeout(20 * time.Millisecond)
	err := b.Create(t.Context(), "key", []byte("x"))
	checkError(t, "stalled", err, fault.Unavailable, "create s3://git-prod/packhorse/key: ")
}

// Bytes that have arrived on an idle connection and are not read yet are noticed before the next request.
func TestUnreadBytes(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b, _ := scripted(t, http.NotFound)
	c, err := b.Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	guarded := c.(*httpguard.Conn)
	socket, ok := guarded.Conn.(syscall.Conn)
	if !ok {
		t.Fatalf("the connection is a %T, want a syscall.Conn", guarded.Conn)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	locked := make(chan struct{})
	lock := sync.OnceFunc(func() { close(locked) })
	go func() { // waits for bytes without reading them, and keeps the other reader from them
		_ = raw.Read(func(uintptr) bool {
			lock()
			return false
		})
	}()
	<-locked
	go func() { _, _ = c.Read(make([]byte, 1)) }()
	if !guarded.Settle() {
		t.Error("Settle() without unread bytes = false, want true")
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	if _, err := io.WriteString(far, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	gittest.WaitFor(t, "the bytes are noticed", func() bool { return !guarded.Settle() })
}

// The headers of answers show proxies and the storage's clock.
func TestConnection(t *testing.T) {
	t.Parallel()
	b, _ := scripted(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		w.Header().Set("Via", "1.1 cache")
		answerError(w, http.StatusNotFound, "NoSuchKey")
	})
	_, _, _ = b.Get(t.Context(), "key", 10)
	c := b.Connection()
	if c.Proxy != "Via: 1.1 cache" || (c.ClockSkew-time.Hour).Abs() > 5*time.Second {
		t.Errorf("Connection = %+v, want Via and one hour", c)
	}
}

// A 404 of a proxy does not mean that an object does not exist. The error document of S3 does, without any header too.
func TestForeignNotFound(t *testing.T) {
	t.Parallel()
	const page = `<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><body>Not Found<br></body></html>`
	for _, test := range []struct {
		header, value, body string
		isForeign           bool
	}{
		{"Content-Type", "text/plain", "404 page not found", true},
		{"Content-Type", "application/xhtml+xml", page, true},
		{"Content-Type", "application/xml", strings.Replace(page, "<br>", "", 1), true},
		{"Content-Type", "application/xml", "", true},
		{"Content-Type", "application/xml", "<Error><Code></Code></Error>", true},
		{"Content-Type", "application/xml", "<Error><Code>NoSuchKey</Code>" + strings.Repeat(" ", 1<<20), true},
		{"Content-Type", "text/plain", "<Error><Code>NoSuchKey</Code></Error>", false},
		{"X-Amz-Request-Id", "R1", "", false},
	} {
		t.Run(fmt.Sprintf("%s with %.30q", test.value, test.body), func(t *testing.T) {
			t.Parallel()
			b, _ := scripted(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set(test.header, test.value)
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, test.body)
			})
			_, _, err := b.Get(t.Context(), "key", 10)
			if !test.isForeign {
				checkError(t, "get", err, fault.NotFound)
				return
			}
			checkError(t, "get", err, fault.Unavailable, "get s3://git-prod/packhorse/key: ", "proxies")
			if errors.Is(err, bucket.ErrNotFound) {
				t.Errorf("Get = %v, want an error that is not ErrNotFound", err)
			}
		})
	}
}

// Credentials are read again when their file changes, and an error names missing ones.
func TestCredentialsFile(t *testing.T) {
	t.Parallel()
	var key atomic.Value
	b, o := scripted(t, func(w http.ResponseWriter, r *http.Request) {
		key.Store(r.Header.Get("Authorization"))
		answerError(w, http.StatusNotFound, "NoSuchKey")
	})
	get := func() error {
		_, _, err := b.Get(t.Context(), "key", 10)
		return err
	}
	if err := get(); !errors.Is(err, bucket.ErrNotFound) || !strings.Contains(key.Load().(string), "Credential=key/") {
		t.Fatalf("Get = %v with %v", err, key.Load())
	}
	o.CredentialsFile += "2"
	b = buckettest.Open(t, o)
	checkError(t, "no file", get(), fault.Unavailable, "no credentials", "aws_access_key_id")
	writeCredentials(t, o.CredentialsFile, "first")
	if err := get(); !errors.Is(err, bucket.ErrNotFound) || !strings.Contains(key.Load().(string), "Credential=first/") {
		t.Fatalf("Get = %v with %v", err, key.Load())
	}
	writeCredentials(t, o.CredentialsFile, "second")
	b.ForgetFileCheck()
	if err := get(); !errors.Is(err, bucket.ErrNotFound) || !strings.Contains(key.Load().(string), "Credential=second/") {
		t.Errorf("Get after a change of the file = %v with %v", err, key.Load())
	}
	o.Profile = "ci"
	b = buckettest.Open(t, o)
	if err := get(); !errors.Is(err, bucket.ErrNotFound) || !strings.Contains(key.Load().(string), "Credential=ci/") ||
		!strings.Contains(key.Load().(string), "x-amz-security-token") {
		t.Errorf("Get with section ci = %v with %v", err, key.Load())
	}
	o.Profile = "other"
	b = buckettest.Open(t, o)
	checkError(t, "no section", get(), fault.Unavailable, "no credentials", "[other]")
}

func TestNew(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "s3://", "s3:///prefix", "https://bucket/prefix", "bucket/prefix", "s3://b",
		"s3://UPPER/x",
		"s3://bucket/a/../b", "s3://bucket/a//b", "s3://bucket/a?x"} {
		if _, err := bucket.New(bucket.Options{URL: url}); !fault.Is(err, fault.Invalid) {
			t.Errorf("New(%q) = %v, want an error of kind Invalid", url, err)
		}
	}
	for _, endpoint := range []string{"localhost:9000", "ftp://x", "http://", "http://host/path"} {
		if _, err := bucket.New(bucket.Options{URL: "s3://bucket", Endpoint: endpoint}); !fault.Is(err, fault.Invalid) {
			t.Errorf("New with endpoint %q = %v, want an error of kind Invalid", endpoint, err)
		}
	}
	if _, err := bucket.New(bucket.Options{URL: "s3://Git_Prod/x"}); err == nil ||
		!strings.Contains(err.Error(), `S3 does not permit the bucket name "Git_Prod"`) {
		t.Errorf("New with a bucket name that S3 does not permit = %v", err)
	}
	for url, want := range map[string]string{"s3://bucket": "s3://bucket/", "s3://bucket/a/b/": "s3://bucket/a/b"} {
		b, err := bucket.New(bucket.Options{URL: url})
		if err != nil || b.String() != want {
			t.Errorf("New(%q) = %v, %v, want %q", url, b, err, want)
		}
	}
}

// The endpoint is that of the options, of AWS_ENDPOINT_URL_S3 or of AWS_ENDPOINT_URL, in this order, as in the SDKs.
func TestEndpointOfTheEnvironment(t *testing.T) {
	var asked atomic.Value
	server := func(name string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Store(name)
			answerError(w, http.StatusNotFound, "NoSuchKey")
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	o := bucket.Options{URL: "s3://git-prod/packhorse", CredentialsFile: filepath.Join(t.TempDir(), "credentials")}
	writeCredentials(t, o.CredentialsFile, "key")
	check := func(want string) {
		t.Helper()
		if _, _, err := buckettest.Open(t, o).Get(t.Context(), "x", 1); !errors.Is(err, bucket.ErrNotFound) {
			t.Error(err)
		}
		if got := asked.Load(); got != want {
			t.Errorf("the request went to %q, want %q", got, want)
		}
	}
	t.Setenv("AWS_ENDPOINT_URL", server("AWS_ENDPOINT_URL"))
	check("AWS_ENDPOINT_URL")
	t.Setenv("AWS_ENDPOINT_URL_S3", server("AWS_ENDPOINT_URL_S3"))
	check("AWS_ENDPOINT_URL_S3")
	o.Endpoint = server("options")
	check("options")
	o.Endpoint = ""
	t.Setenv("AWS_ENDPOINT_URL_S3", "s3.example")
	if _, err := bucket.New(o); err == nil || !strings.Contains(err.Error(), `AWS_ENDPOINT_URL_S3 "s3.example"`) {
		t.Errorf("New with an invalid endpoint = %v, want an error with the name of the variable", err)
	}
}
