package roles

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

// TestConnectionLimits: connections never take the descriptors that everything else needs.
func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	for _, n := range []int{64, 256, 1024, 4096, 20_000, 1 << 20} {
		for _, http := range []int{0, 10, 1 << 20} {
			for _, ssh := range []int{0, 10, 1 << 20} {
				cfg := config.DefaultConfig()
				cfg.SSH.Address, cfg.HTTP.Connections, cfg.SSH.Connections = "127.0.0.1:0", http, ssh
				l := limitsOf(&cfg, n)
				if l.http < 1 || l.ssh < 1 || l.http+l.ssh > n*3/4 || l.httpAddress > l.http || l.sshAddress > l.ssh ||
					l.addressLogins > l.sshLogins {
					t.Errorf("%d descriptors, http = %d, ssh = %d: limits = %+v, want less than three quarters together", n, http, ssh,
						l)
				}
				if !l.lowered && (http > 0 && l.http != http || ssh > 0 && l.ssh != ssh) {
					t.Errorf("with %d descriptors http %d and ssh %d became %d and %d, and nobody is told", n, http, ssh, l.http,
						l.ssh)
				}
			}
		}
	}
	cfg := config.DefaultConfig()
	if l := limitsOf(&cfg, 1024); l.http != 512 || l.ssh != 0 || l.httpAddress != 128 {
		t.Errorf("without SSH: limits = %+v, want http 512 and 128 for each address", l)
	}
	cfg.SSH.Address = "127.0.0.1:0"
	if l := limitsOf(&cfg, 1<<20); l.http != 32768 || l.ssh != 4096 || l.sshAddress != 1024 || l.sshLogins != 256 ||
		l.addressLogins != 128 {
		t.Errorf("with many descriptors: limits = %+v, want the maximum of each", l)
	}
}

// TestDescriptorsRaised: the soft limit is the hard one.
func TestDescriptorsRaised(t *testing.T) {
	t.Parallel()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if uint64(descriptors()) != min(limit.Cur, unlimitedProcess) {
		t.Errorf("descriptors() = %d, want the limit %d", descriptors(), limit.Cur)
	}
}

// TestTooManyConnections refuses a connection. The client gets a response in HTTP, and /readyz has a warning.
func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	cfg := config.DefaultConfig()
	cfg.HTTP.Connections = 1
	limit := must(newClientListeners(testDeps(t, config.RoleGateway, cfg, slog.New(slog.DiscardHandler),
		prometheus.NewRegistry())))
	begun, finish := make(chan struct{}), make(chan struct{})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(begun)
		<-finish
	}))
	s.Listener = limit.http.ByAddress(limit.http.Listen(s.Listener))
	s.Config.ConnState = limit.http.State
	s.Start()
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(finish) })
	first, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	io.WriteString(first, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-begun
	if notes := limit.notes(); len(notes) != 0 {
		t.Errorf("notes before a refusal = %q, want none", notes)
	}
	// Without a request: http.Client fails if the response arrives before it has sent one.
	second, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	second.SetDeadline(time.Now().Add(time.Minute))
	r, err := http.ReadResponse(bufio.NewReader(second), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") != "1" ||
		string(text) != "too many connections; try again\r\n" {
		t.Errorf("refused connection: status = %d, text = %q, error = %v, want 503 and Retry-After", r.StatusCode, text, err)
	}
	if notes := limit.notes(); len(notes) != 1 || !strings.Contains(notes[0], "the http listener refused 1 connections") {
		t.Errorf("notes = %q, want one about 1 refused connection", notes)
	}
}

// must is for what has no error in a test.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
