package compare

import (
	"bytes"
	"testing"
)

// BenchmarkLines measures the lines per second that one CPU parses and counts.
func BenchmarkLines(b *testing.B) {
	line := `{"time":"2026-11-22T01:00:00.000008Z","level":"INFO","msg":"request","request":"01JD000000000008","operation":"fetch","result":"ok",` +
		`"repository":"group/p8.git","ms":6.421,"transport":"http","status":200,"client":"127.0.0.1:40008","protocol":"HTTP/1.1 v2","agent":"git/2.39.5",` +
		`"wants":1,"haves":0,"common":0,"pack":"hit","key":"0123456789abcdef","objects":100,"pack_bytes":12345,"parse_ms":0.1,"negotiate_ms":0.2,` +
		`"wait_ms":0,"first_byte_ms":0.4,"copy_ms":0.5,"git_cpu_ms":0,"bytes":12345,"kernel_bytes":12000}` + "\n"
	for name, c := range map[string]struct {
		format Format
		line   string
	}{
		"packhorse": {Packhorse, line},
		"nginx":     {Nginx, `{"time_iso8601":"2026-11-22T04:05:06+00:00","request_method":"POST","request_uri":"/team/app/issues/17?x=y","status":"200","request_time":"0.123"}` + "\n"},
		"common":    {Common, `10.0.0.1 - - [22/Nov/2026:04:05:06 +0000] "GET /a/17?x=1 HTTP/1.1" 200 512 "https://x/" "curl/8" 0.123` + "\n"},
	} {
		b.Run(name, func(b *testing.B) {
			text := bytes.Repeat([]byte(c.line), maxLine/len(c.line))
			r := &reading{format: c.format}
			r.settle()
			p, t, got := newParser(r), newTable([classes]bool{answered: true}, "", nil), new(batch)
			lines := 0
			b.ReportAllocs()
			for b.Loop() {
				p.read(chunk{text: text}, got)
				if err := t.add(got, 0); err != nil {
					b.Fatal(err)
				}
				lines += got.lines
			}
			b.ReportMetric(float64(lines)/b.Elapsed().Seconds(), "lines/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
