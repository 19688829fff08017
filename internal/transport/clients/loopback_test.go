package clients

import "testing"

func TestIsLoopback(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "localhost:80": true, "LocalHost": true, "localhost.:80": true,
		"127.0.0.1": true, "127.9.9.9:9100": true, "[::1]:9100": true, "[::1]": true,
		"": false, "evil.example": false, "evil.example:9100": false, "localhost.evil.example": false,
		"127.0.0.1.evil.example:80": false,
		"0.0.0.0:9100":              false, "10.0.0.1": false, "[::]": false, "localhost:1:2": false, "[]": false, "[": false,
	} {
		if got := IsLoopback(host); got != want {
			t.Errorf("IsLoopback(%q) = %v, want %v", host, got, want)
		}
	}
}
