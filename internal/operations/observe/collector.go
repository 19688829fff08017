package observe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"connectrpc.com/connect"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

// exportCall is the gRPC method of a collector.
const exportCall = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

// maxResponse is the maximum size of a collector's response in bytes.
const maxResponse = 64 << 10

// collector sends spans by OTLP: HTTP with protobuf, or gRPC. It implements otlptrace.Client.
//
// OpenTelemetry's own clients link grpc-go, and with it templates that look up methods by name. These almost double the
// size of the program (docs/decisions/0011). This client needs only libraries that the control API has.
type collector struct {
	url     string
	http    *http.Client
	grpc    *connect.Client[otlp.TracesData, emptypb.Empty] // nil: HTTP
	headers http.Header
	pauses  retry.Policy // before a retry
}

func newCollector(u *url.URL, o TracingOptions) *collector {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, IdleConnTimeout: 90 * time.Second}
	c := &collector{url: u.String(), headers: o.Headers,
		pauses: retry.Policy{First: o.Timeout / 20, Max: o.Timeout / 4}}
	if o.GRPC {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetHTTP2(true)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	// A redirect is an error: net/http would send credentials in unknown headers to the other server.
	c.http = httpguard.Client(transport)
	if o.GRPC {
		// TracesData has the same encoding as ExportTraceServiceRequest, whose package needs grpc-go.
		c.grpc = connect.NewClient[otlp.TracesData, emptypb.Empty](c.http, u.JoinPath(exportCall).String(),
			connect.WithGRPC(), connect.WithReadMaxBytes(maxResponse))
	}
	return c
}

// Start implements otlptrace.Client. Connections are opened by the first export.
func (c *collector) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (c *collector) Stop(context.Context) error {
	c.http.CloseIdleConnections()
	return nil
}

// UploadTraces implements otlptrace.Client. It retries until ctx ends if the collector is unavailable or overloaded.
func (c *collector) UploadTraces(ctx context.Context, spans []*otlp.ResourceSpans) error {
	send := c.sendHTTP
	if c.grpc != nil {
		send = c.sendGRPC
	}
	data := &otlp.TracesData{ResourceSpans: spans}
	for failures := 1; ; failures++ {
		err := send(ctx, data)
		failure, ok := errors.AsType[*retryError](err)
		if !ok {
			return err
		}
		if c.pauses.Wait(ctx, failures, failure.after) != nil {
			return failure.error
		}
	}
}

// retryError is an error after which another attempt is worthwhile.
type retryError struct {
	error
	after time.Duration // the collector's hint; zero if it gave none
}

func (c *collector) sendHTTP(ctx context.Context, data *otlp.TracesData) error {
	body, err := proto.Marshal(data)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	maps.Copy(request.Header, c.headers)
	request.Header.Set("Content-Type", "application/x-protobuf")
	response, text, err := httpguard.Do(c.http, request, maxResponse)
	if response == nil {
		return &retryError{error: err}
	}
	switch status := response.StatusCode; {
	case status == http.StatusTooManyRequests, status == http.StatusBadGateway, status == http.StatusServiceUnavailable,
		status == http.StatusGatewayTimeout:
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		return &retryError{fmt.Errorf("collector: HTTP status %s", response.Status),
			time.Duration(max(seconds, 0)) * time.Second}
	case status/100 != 2:
		return fmt.Errorf("collector: HTTP status %s: %.200q", response.Status, text)
	case err != nil:
		return fmt.Errorf("collector: cannot read the response: %w", err)
	}
	return rejected(text)
}

func (c *collector) sendGRPC(ctx context.Context, data *otlp.TracesData) error {
	request := connect.NewRequest(data)
	maps.Copy(request.Header(), c.headers)
	response, err := c.grpc.CallUnary(ctx, request)
	if err == nil {
		return rejected(response.Msg.ProtoReflect().GetUnknown())
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeCanceled, connect.CodeDeadlineExceeded, connect.CodeAborted,
		connect.CodeOutOfRange, connect.CodeDataLoss:
		return &retryError{error: err}
	case connect.CodeResourceExhausted:
		e, _ := errors.AsType[*connect.Error](err)
		for _, detail := range e.Details() {
			if detail.Type() == "google.rpc.RetryInfo" {
				return &retryError{error: err}
			}
		}
	}
	return err
}

// rejected returns an error if a response, an ExportTraceServiceResponse, reports rejected spans.
func rejected(response []byte) error {
	partial := fieldOf(response, 1) // partial_success
	if n, _ := protowire.ConsumeVarint(fieldOf(partial, 1)); n > 0 {
		return fmt.Errorf("collector: rejected %d spans: %.200q", n, fieldOf(partial, 2))
	}
	return nil
}

// fieldOf returns the content of a field of an encoded message, or nil if it is missing.
func fieldOf(message []byte, number protowire.Number) []byte {
	for len(message) > 0 {
		n, kind, tag := protowire.ConsumeTag(message)
		size := protowire.ConsumeFieldValue(n, kind, message[max(tag, 0):])
		if tag < 0 || size < 0 {
			return nil
		}
		value := message[tag : tag+size]
		if n == number && kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		if n == number {
			return value
		}
		message = message[tag+size:]
	}
	return nil
}
