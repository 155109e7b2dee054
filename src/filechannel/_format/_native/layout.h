/* The numbers of layout.py that C needs. A test compares every one of them (see LAYOUT in module.c). */
#ifndef FILECHANNEL_LAYOUT_H
#define FILECHANNEL_LAYOUT_H

#define RECORD_HEADER_SIZE 8
#define BATCH_CONTINUES 0x80000000u
#define CONTROL_RECORD 0x40000000u
#define LENGTH_MASK 0x3fffffffu

#define SEGMENT_HEADER_SIZE 64
#define SEGMENT_END 24

#define INDEX_BYTES 65536

#define CONTROL_SIZE 73728
#define WRITER_LOCK 128
#define EPOCH 132
#define WRITE_TAIL 192
#define APPEND_TAIL 384
#define RESERVED_END 576
#define STATE 704
#define STATE_SEALED 1u
#define STATE_DEFERRED 2u
#define WAKE 768
#define WAKE_THREADS 1u
#define WAKE_LOOPS 2u
#define WAKE_GENERATION 4u
#define REGISTRATIONS 904
#define ROOM 1152
#define ROOM_WATCHED 1156
#define CONTENDED 1u
#define TAIL_SLOT_0 64
#define TAIL_SLOT_1 128

#define CURSOR_SLOT_0 0
#define CURSOR_SLOT_1 64

#endif
