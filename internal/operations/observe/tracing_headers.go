package observe

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Variables of the environment with the headers of exports, such as the credentials of a collector. The first one that
// is not empty applies (https://opentelemetry.io/docs/specs/otel/protocol/exporter/).
var headerVariables = []string{"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"}

// TracingHeaders returns the headers of exports from variables of the environment. Errors never contain a value.
func TracingHeaders(getenv func(name string) string) (http.Header, error) {
	for _, name := range headerVariables {
		if text := getenv(name); text != "" {
			headers, err := parseHeaders(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			return headers, nil
		}
	}
	return nil, nil
}

// parseHeaders parses "KEY=VALUE,KEY=VALUE". Values are percent-encoded.
func parseHeaders(text string) (http.Header, error) {
	headers := http.Header{}
	n := 0
	for pair := range strings.SplitSeq(text, ",") {
		n++
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, hasValue := strings.Cut(pair, "=")
		key = strings.TrimSpace(key)
		if !hasValue || !httpguts.ValidHeaderFieldName(key) {
			return nil, fmt.Errorf("header %d is not KEY=VALUE, as in api-key=secret", n)
		}
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if err != nil || !httpguts.ValidHeaderFieldValue(value) {
			return nil, fmt.Errorf("header %q: the value is not valid: percent-encode characters such as %%, commas and spaces",
				key)
		}
		headers.Set(key, value)
	}
	return headers, nil
}
