package account

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestCookieOfHost: with TLS, browsers accept the cookie of a session only from this host.
func TestCookieOfHost(t *testing.T) {
	t.Parallel()
	a, err := New(Options{Key: []byte("key"), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := a.sessions.seal(session{"secret", time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	for secure, name := range map[bool]string{false: sessionName, true: "__Host-" + sessionName} {
		w := httptest.NewRecorder()
		setCookie(w, sessionName, sealed, time.Hour, secure)
		cookies := w.Result().Cookies()
		if len(cookies) != 1 || cookies[0].Name != name || cookies[0].Path != "/" || cookies[0].Secure != secure {
			t.Fatalf("with TLS %v: %v, want one cookie %s", secure, cookies, name)
		}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.AddCookie(cookies[0])
		if own, other := a.Credential(r, secure), a.Credential(r, !secure); own != "secret" || other != "" {
			t.Errorf("%s is a session of %q, and of %q if TLS is %v", name, own, other, !secure)
		}
	}
}
