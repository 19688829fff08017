package config

import (
	"strings"
	"testing"
)

func TestCORSOrigins(t *testing.T) {
	t.Parallel()
	for origins, want := range map[string]string{
		`[]`: "",
		`["https://ide.example", "http://localhost:5173", "https://[::1]:8443", "tauri://localhost"]`: "",
		`["https://*.example"]`:          `http.cors_origins: "https://*.example" is not an origin: write one`,
		`["*", "https://ide.example"]`:   `http.cors_origins: "*" stands for all origins: remove it or the others`,
		`["null"]`:                       "not an origin",
		`["ide.example"]`:                "not an origin",
		`["https://ide.example/"]`:       "not an origin",
		`["https://IDE.example"]`:        "not an origin",
		`["https://idé.example"]`:        "not an origin",
		`["https://a@ide.example"]`:      "not an origin",
		`["https://ide.example\r\nX: "]`: "not an origin",
		`["https://ide.example:443"]`:    "default port",
		`["http://ide.example:80"]`:      "default port",
		`["*"]`:                          "reachable from web pages (http.cors_origins), and there is no authentication",
		"[\"*\"]\npublic_read = true":    "",
	} {
		cfg, _, err := loadText(t, "[http]\ncors_origins = "+origins)
		if err == nil {
			err = cfg.Check()
		}
		if err == nil {
			err = cfg.CheckOpen()
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error = %v, want %q", origins, err, want)
		}
	}
}
