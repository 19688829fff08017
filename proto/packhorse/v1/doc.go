// Package packhorsev1 is the control API of a storage node: the messages. The services are in packhorsev1connect, and also plain gRPC to
// whoever speaks that. The .proto files beside this one say what each call does; docs/reference/api.md shows them with curl.
//
// What is in version 1 stays: fields and calls are added, never changed or removed.
package packhorsev1
