// Package packhorsev1 contains the messages of the control API of a storage node. The services are in
// packhorsev1connect; any gRPC client can call them. The .proto files describe each call, and docs/reference/api.md
// shows examples with curl.
//
// Version 1 is stable: later releases add fields and calls, and do not change or remove them.
package packhorsev1
