package browser

import (
	"net/http"
	"testing"
)

func TestLocal(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "localhost:80": true, "127.0.0.1": true, "127.9.9.9:9100": true, "[::1]:9100": true, "[::1]": true,
		"": false, "evil.example": false, "evil.example:9100": false, "localhost.evil.example": false, "127.0.0.1.evil.example:80": false,
		"0.0.0.0:9100": false, "10.0.0.1": false, "[::]": false, "localhost:1:2": false, "[]": false, "[": false,
	} {
		if Local(&http.Request{Host: host}) != want {
			t.Errorf("%q: not %v", host, want)
		}
	}
}

func TestSent(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		header, value string
		sent, foreign bool
	}{
		{"Accept", "*/*", false, false},
		{"Sec-Fetch-Site", "none", false, false},
		{"Sec-Fetch-Site", "same-origin", true, false},
		{"Sec-Fetch-Site", "same-site", true, true},
		{"Sec-Fetch-Site", "cross-site", true, true},
		{"Origin", "http://evil.example", true, true},
		{"Origin", "null", true, true},
	} {
		r := &http.Request{Header: http.Header{test.header: {test.value}}}
		if Sent(r) != test.sent || Foreign(r) != test.foreign {
			t.Errorf("%s: %s: sent %v, foreign %v", test.header, test.value, Sent(r), Foreign(r))
		}
	}
}
