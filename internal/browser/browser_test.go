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
		want          bool
	}{
		{"Accept", "*/*", false},
		{"Sec-Fetch-Site", "none", false},
		{"Sec-Fetch-Site", "same-origin", true},
		{"Sec-Fetch-Site", "cross-site", true},
		{"Origin", "http://evil.example", true},
		{"Origin", "null", true},
	} {
		if Sent(&http.Request{Header: http.Header{test.header: {test.value}}}) != test.want {
			t.Errorf("%s: %s: not %v", test.header, test.value, test.want)
		}
	}
}
